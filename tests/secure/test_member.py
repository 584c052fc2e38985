"""A site among the parties: what it refuses, whoever asks."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import Sites

from cupola.engines import InProcess, SeparateProcesses, masked_sums
from cupola.errors import CupolaError, FederationError
from cupola.federation import Declined, Question, Spec
from cupola.federation.site import find_task
from cupola.secure import simulated_parties
from cupola.secure.durable_dict import Memory
from cupola.secure.wrapped_question import outer_question

HOST = Sites(4)
PARTIES = simulated_parties("study", seed=1, sites=4)


def terms(**changes):
    return {
        "roster": PARTIES.roster.digest.hex(),
        "sites": 4,
        "attempt": 1,
        "check": "00" * 32,
        **changes,
    }


def asked(question=None, **changes):
    inner = HOST.question() if question is None else question
    return outer_question("masked", inner, {}, terms(**changes))


def answer(question, site=0):
    parties = simulated_parties("study", seed=1, sites=4)
    with InProcess(HOST, seed=3, parties=parties.member) as engine:
        return find_task(question.task)(engine.context(site), question)


def test_a_site_refuses_a_roster_it_did_not_pin():
    other = simulated_parties("study", seed=2, sites=4).roster
    assert answer(asked()).arrays
    with pytest.raises(Declined, match="roster"):
        answer(asked(roster=other.digest.hex()))


@pytest.mark.parametrize("kind", ["in-process", "separate"])
def test_a_site_of_a_masked_study_does_not_answer_unmasked(kind):
    if kind == "separate":
        engine = SeparateProcesses("studies:Sites", {"sites": 4}, 4, party=PARTIES.recipe)
    else:
        engine = InProcess(HOST, parties=PARTIES.member)
    question = HOST.question()
    with engine:
        assert engine.gather(question, range(4)) == {}
        assert engine.sum(question, range(4)).sites == []


def test_what_was_agreed_may_be_gathered():
    parties = simulated_parties("study", seed=1, sites=4, unmasked=["study numbers"])
    with InProcess(HOST, parties=parties.member) as engine, masked_sums(engine, parties) as hidden:
        assert set(hidden.gather(HOST.question(), range(4))) == {0, 1, 2, 3}


def test_masks_are_never_used_twice():
    one, two = answer(asked()), answer(asked())
    for name, array in one.arrays.items():
        if array.size > 1:
            assert (array != two.arrays[name]).any(), name


def test_a_masked_answer_tells_nothing_of_its_numbers():
    """Bytes of masked zeros look like any others (chi-square over 256 values)."""
    host = Sites(3, (20_000,), bound=1e-30, whole=1)
    parties = simulated_parties("flat", seed=1, sites=3)
    question = outer_question(
        "masked", host.question(), {}, terms(roster=parties.roster.digest.hex())
    )
    with InProcess(host, parties=parties.member) as engine:
        arrays = find_task("masked")(engine.context(0), question).arrays
    for name in ("x", "n", "b"):
        counts = np.bincount(arrays[f"masked/{name}"].view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 400  # 255 +- 23


def test_a_question_within_a_question_within_a_question_is_refused():
    with pytest.raises(FederationError, match="well formed"):
        answer(asked(asked()))


def test_a_site_without_keys_refuses():
    with InProcess(HOST) as engine, pytest.raises(Declined, match="no keys"):
        find_task("masked")(engine.context(0), asked())


def test_what_was_answered_is_remembered(tmp_path):
    path = tmp_path / "answered.jsonl"
    for scale, refused in ((1.0, False), (1.0, False), (2.0, True)):
        member = PARTIES.new_member(0, Memory(path))
        try:
            question = asked(HOST.question(arrays={"scale": np.array(scale)}))
            with InProcess(HOST, parties=lambda _, m=member: m) as engine:
                if refused:
                    with pytest.raises(Declined, match="another question"):
                        find_task("masked")(engine.context(0), question)
                else:
                    find_task("masked")(engine.context(0), question)
        finally:
            member.memory.close()


def test_noise_is_not_drawn_anew_in_a_later_attempt():
    """Else it could be averaged away over attempts, for one charge."""
    with InProcess(HOST, parties=PARTIES.member) as engine:
        site = engine.context(2)
        site.seed = None  # as at a real site: the operating system's randomness
        expects = {"x": Spec((3,), bound=1.0)}
        inner = Question("study draws", expects=expects, step=77)
        assert find_task("masked")(site, asked(inner)).arrays
        with pytest.raises(Declined, match="not be the same"):
            find_task("masked")(site, asked(inner, attempt=2))


def test_a_memory_that_cannot_be_written_is_closed(tmp_path, monkeypatch):
    memory = Memory(tmp_path / "held.jsonl")
    assert memory.setdefault("a", 1) == 1
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        memory.setdefault("b", 2)
    monkeypatch.undo()
    with pytest.raises(OSError, match="closed"):
        memory.setdefault("c", 3)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    part=st.sampled_from(["inner", "hidden", "both"]),
    key=st.sampled_from(["task", "options", "expects", "partial", "roster", "sites", "attempt",
                         "check", "heaviest", "reveals"]),
    value=PLAIN,
    whole=st.booleans(),
)  # fmt: skip
def test_fuzzed_questions_never_break_a_site(part, key, value, whole):
    good = asked()
    options = {name: dict(facts) for name, facts in good.options.items()}
    for name in ("inner", "hidden") if part == "both" else (part,):
        if whole:
            options[name] = value
        else:
            options[name][key] = value
    question = Question("masked", good.arrays, options)
    try:
        arrays = answer(question).arrays
    except (Declined, CupolaError):
        return
    assert set(arrays) >= {"envelope", "masked/#weight"}
