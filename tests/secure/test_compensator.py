"""What the compensator tells, and every way tried to make it tell more."""

import signal
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes
from settling import OTHER, QUESTION, SMALL, Study

from cupola.engines import InProcess, SeparateProcesses
from cupola.errors import DataError, FederationError
from cupola.federation import Declined, Ledger, Question
from cupola.federation.message import decode_question, encode_question
from cupola.federation.site import SiteContext, StateStore
from cupola.secure.checksum import checksum, from_bytes
from cupola.secure.compensator import (
    CHUNK,
    Compensator,
    CompensatorHost,
    Request,
    compensator_host,
    settle,
    settled,
    unmask,
)
from cupola.secure.compensator_messages import CHECK, SUM, chunks, settled_question, unmask_question
from cupola.secure.encoding import decode, encode, entry, outline
from cupola.secure.envelope import seal
from cupola.secure.identity import Identity
from cupola.secure.mask_stream import P, add_mask, mask_residue
from cupola.secure.roster import Roster, simulated_roster

KEY = bytes(range(32))  # of checksums


@pytest.fixture
def lasting(tmp_path):
    """Studies whose compensator keeps its memory in a file."""
    made = []

    def study(sites=5, **facts):
        made.append(Study(sites, memory=tmp_path / "memory", **facts))
        return made[-1]

    yield study
    for one in made:
        one.compensator.close()


def refused(study, request, code):
    with pytest.raises(Declined, match=code):
        study.compensator.settle(request)
    return True


def masks(study, request, array, size, kind):
    """The sum of masks by its definition."""
    total = np.zeros(size, kind)
    for place in request.contributors(array):
        add_mask(total, study.key(request, place, array))
    return total


# What it tells


def test_it_tells_the_sum_of_the_survivors_masks():
    study = Study()
    request = study.request([0, 2, 4])
    assert study.compensator.settle(request) == {"x": True, "n": True}
    found = study.compensator.unmask(request.digest, "x", 0, 10)
    assert (found == masks(study, request, "x", 10, np.int32)).all()
    parts = [study.compensator.unmask(request.digest, "n", i, i + 1) for i in range(4)]
    assert (np.concatenate(parts) == masks(study, request, "n", 4, np.int64)).all()
    residue = sum(mask_residue(study.key(request, place, "x")) for place in range(3)) % P
    assert study.compensator.residue(request.digest, "x") == residue


@given(
    st.data(),
    array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=4),
    st.integers(3, 6),
    st.sampled_from([16, 32, 64]),
    st.floats(1e-3, 1e3),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_masked_totals_are_plain_totals(data, shape, sites, bits, bound):
    """Any shapes, bounds, weights, subsets and orders; integers exactly, floats to their bits."""
    study = Study(sites)
    layout = (
        entry("x", shape, "float", bound, sites, bits),
        entry("n", shape, "int", 5000, sites),
    )
    survivors = data.draw(st.permutations(range(sites)))[: data.draw(st.integers(3, sites))]
    random = np.random.default_rng(data.draw(st.integers(0, 1000)))
    weights = {i: data.draw(st.integers(0, 5)) for i in survivors}
    values = {
        i: {
            "x": random.uniform(-bound, bound, shape) / 5,
            "n": random.integers(-1000, 1001, shape),
        }
        for i in survivors
    }
    request = study.request(survivors, dict.fromkeys(survivors, outline(layout)))
    sums = {e.name: np.zeros(e.size, e.dtype) for e in layout}
    checks = dict.fromkeys(sums, 0)
    for place, i in enumerate(survivors):
        for e in layout:
            integers, key = (
                encode(e, values[i][e.name], weights[i]),
                study.key(request, place, e.name),
            )
            checks[e.name] += checksum(KEY, e.name, integers) + mask_residue(key)
            add_mask(integers, key)
            sums[e.name] += integers
    assert all(study.compensator.settle(request).values())
    for e in layout:
        sums[e.name] -= study.compensator.unmask(request.digest, e.name, 0, e.size)
        residue = (checks[e.name] - study.compensator.residue(request.digest, e.name)) % P
        assert checksum(KEY, e.name, sums[e.name]) == residue
        found = decode(e, sums[e.name]).reshape(-1).tolist()
        exact = [
            sum(Fraction(values[i][e.name].reshape(-1).tolist()[j]) * weights[i] for i in survivors)
            for j in range(e.size)
        ]
        slack = Fraction(bound * sites) / 2**51 if e.kind == "float" else 0
        assert all(abs(Fraction(f) - t) <= Fraction(e.error) + slack for f, t in zip(found, exact))


def test_a_wrong_sum_of_masks_is_noticed():
    study = Study()
    request = study.request([0, 1, 2])
    study.compensator.settle(request)
    integers = [np.arange(10, dtype=np.int32) + place for place in range(3)]
    checks = sum(
        checksum(KEY, "x", z) + mask_residue(study.key(request, place, "x"))
        for place, z in enumerate(integers)
    )
    residue = (checks - study.compensator.residue(request.digest, "x")) % P
    assert checksum(KEY, "x", sum(integers)) == residue
    for place in range(10):
        for change in (1, -1, 2**31 - 1):
            wrong = sum(integers) + np.eye(10, dtype=np.int32)[place] * np.int32(change)
            assert checksum(KEY, "x", wrong) != residue


def test_the_same_request_is_granted_again_with_the_same_masks(lasting, tmp_path):
    study = lasting()
    request = study.request([0, 1, 2])
    assert study.compensator.settle(request) == study.compensator.settle(request)
    first = study.compensator.unmask(request.digest, "x", 0, 10)
    lines = (tmp_path / "memory").read_bytes()
    study.restart()
    with pytest.raises(Declined, match="settle it again"):
        study.compensator.unmask(request.digest, "x", 0, 10)
    turned = replace(request, sites=(2, 1, 0), envelopes=request.envelopes[::-1])
    assert turned.digest == request.digest
    study.compensator.settle(turned)
    assert (study.compensator.unmask(request.digest, "x", 0, 10) == first).all()
    assert (tmp_path / "memory").read_bytes() == lines


# Attacks


def test_a_forged_site_is_refused():
    """The coordinator seals seeds of its own as other sites', to learn the one real answer."""
    study, own = Study(), Identity.simulated(99, "coordinator")
    forged = {site: study.envelope(site, signed_by=own) for site in (1, 2)}
    assert refused(
        study, study.request([0, 1, 2], envelopes=forged), "bad envelope from site site 1"
    )
    named = Identity("site 1", bytes(range(32)), bytes(range(32)))
    forged = {1: study.envelope(1, signed_by=named)}
    assert refused(
        study, study.request([0, 1, 2], envelopes=forged), "bad envelope from site site 1"
    )
    # A site of the roster that helps the coordinator can only speak for itself.
    forged = {1: study.envelope(1, signed_by=study.members[2])}
    assert refused(
        study, study.request([0, 1, 2], envelopes=forged), "bad envelope from site site 1"
    )


def test_a_swapped_key_of_the_compensator_is_refused():
    study, own = Study(), Identity.simulated(99, "compensator")
    read = {site: study.envelope(site, sealed_to=own.public) for site in range(3)}
    assert refused(study, study.request([0, 1, 2], envelopes=read), "bad envelope")
    swapped = Roster("study", study.roster.sites, own.public)
    assert swapped.digest != study.roster.digest
    assert refused(
        study, replace(study.request([0, 1, 2]), roster=swapped.digest), "roster differs"
    )
    with pytest.raises(FederationError, match="keys are not those"):
        Compensator(own, study.roster)
    with pytest.raises(FederationError, match="keys are not those"):
        Compensator(study.third, Roster("study", study.roster.sites))


@pytest.mark.parametrize("sites", [[0, 1, 2], [0, 1, 2, 4], [0, 1, 2, 3, 4], [1, 2, 3, 4]])
@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_step_is_told_for_one_set_of_survivors(lasting, sites, attempt, restarted):
    study = lasting(leaves=range(5))
    study.compensator.settle(study.request([0, 1, 2, 3]))
    if restarted:
        study.restart()
    names = "step settled for other survivors: site 0, site 1, site 2, site 3"
    assert refused(study, study.request(sites, attempt=attempt), names)


def test_a_step_is_told_for_one_question_and_one_layout():
    study = Study(leaves=range(5))
    study.compensator.settle(study.request([0, 1, 2, 3]))
    other = study.request([0, 1, 2, 3], question=OTHER, attempt=1)
    assert refused(study, other, "another question")
    less = study.request([0, 1, 2, 3], {3: SMALL[:1]}, attempt=1)
    assert refused(study, less, "other survivors")


def test_a_later_attempt_is_for_the_same_survivors():
    """After a crash: fresh masks over the same answers."""
    study = Study()
    first, second = (study.request([0, 1, 2], attempt=attempt) for attempt in (3, 5))
    study.compensator.settle(first)
    study.compensator.settle(second)
    a, b = (study.compensator.unmask(r.digest, "x", 0, 10) for r in (first, second))
    assert (a != b).any()
    study.compensator.settle(first)  # what was granted stays granted
    for attempt in (2, 3, 4, 5):
        again = study.request([0, 1, 2], attempt=attempt)
        assert refused(study, again, "settled with other envelopes")


def test_a_question_asked_again_under_a_new_step_with_one_site_fewer_is_refused(lasting):
    study = lasting()
    study.compensator.settle(study.request([0, 1, 2, 3, 4]))
    for sites in ([0, 1, 2, 3], [0, 1, 2]):
        assert refused(study, study.request(sites, step=1), "would tell of too few sites")
    study.restart()
    assert refused(study, study.request([0, 1, 2, 3], step=7), r"too few sites: \[4\]")
    # The same site with an array less is as much of a difference.
    less = study.request([0, 1, 2, 3, 4], {4: SMALL[:1]}, step=1)
    assert refused(study, less, "too few sites")
    study.compensator.settle(study.request([0, 1, 2, 3, 4], step=1))  # nothing new


def test_a_question_asked_again_with_one_site_more_is_refused():
    study = Study()
    study.compensator.settle(study.request([0, 1, 2, 3]))
    assert refused(study, study.request([0, 1, 2, 3, 4], step=1), r"too few sites: \[4\]")


def test_a_site_that_agreed_may_be_left_out():
    study = Study(leaves=[4])
    study.compensator.settle(study.request([0, 1, 2, 3, 4]))
    study.compensator.settle(study.request([0, 1, 2, 3], step=1))
    assert refused(study, study.request([0, 1, 2], step=2), r"too few sites: \[3\]")
    assert refused(study, study.request([1, 2, 3, 4], step=2), r"too few sites: \[0\]")


def test_those_who_did_not_agree_stay_in_a_crowd():
    """Totals over {0..4}, {0..3} and {0, 1, 2, 4} tell 3 and 4, who agreed to it; {0, 1, 3, 4}
    would tell 2, too, and with it 0 and 1 together: two sites where three were promised."""
    study = Study(leaves=[2, 3, 4])
    for step, sites in enumerate([[0, 1, 2, 3, 4], [0, 1, 2, 3], [0, 1, 2, 4]]):
        assert all(study.compensator.settle(study.request(sites, step=step)).values())
    assert refused(study, study.request([0, 1, 3, 4], step=3), r"too few sites: \[0, 1\]")


@pytest.mark.parametrize(
    "change", [{"step": 1}, {"attempt": 1}, {"question": OTHER}, {"terms": OTHER}]
)
def test_a_replayed_envelope_is_refused(change):
    study = Study()
    old = {1: study.envelope(1)}
    assert refused(study, study.request([0, 1, 2], envelopes=old, **change), "from site site 1")


def test_swapped_envelopes_are_refused():
    study = Study()
    a, b = study.envelope(0), study.envelope(1)
    assert refused(study, study.request([0, 1, 2], envelopes={0: b, 1: a}), "bad envelope")
    assert refused(study, study.request([0, 1, 2], envelopes={1: a}), "bad envelope")


@pytest.mark.parametrize("minimum", [3, 4])
def test_too_few_sites_are_refused(minimum):
    study = Study(minimum=minimum)
    for sites in range(minimum):
        code = rf"too few sites \({sites} of at least {minimum}\)"
        assert refused(study, study.request(range(sites)), code)
    study.compensator.settle(study.request(range(minimum)))


def test_two_sites_are_enough_if_all_agreed():
    study = Study(minimum=2)
    assert refused(study, study.request([0]), "too few")
    study.compensator.settle(study.request([0, 1]))


def test_a_site_counts_once():
    study = Study()
    assert refused(study, study.request([0, 0, 1]), "site twice")
    assert refused(study, study.request([0, 1, 2, 2]), "site twice")


def test_a_site_outside_the_roster_is_refused():
    study = Study()
    request = study.request([0, 1, 2])
    for site in (-1, 5, 2**31 - 1):
        assert refused(study, replace(request, sites=(0, 1, site)), "not in the roster")


def test_a_tampered_roster_is_refused():
    """The coordinator's roster has a site of its own, or a lower minimum: pinned is pinned."""
    study = Study()
    for own in (
        simulated_roster(1, "study", 6)[0],
        simulated_roster(1, "study", 5, minimum=2)[0],
        simulated_roster(1, "study", 5, leaves=range(5))[0],
        simulated_roster(2, "study", 5)[0],
    ):
        assert refused(
            study, replace(study.request([0, 1, 2]), roster=own.digest), "roster differs"
        )
    assert refused(study, replace(study.request([0, 1, 2]), study="study 2"), "roster differs")
    other = simulated_roster(1, "study", 5, leaves=[0])[0]
    signed = {
        site: seal(
            replace(study.statement(site), roster=other.digest), bytes(32), m, study.third.public
        )
        for site, m in enumerate(study.members)
    }
    assert refused(study, study.request([0, 1, 2], envelopes=signed), "bad envelope")


def test_layouts_that_lie_about_sizes_are_refused():
    study = Study()
    request = study.request([0, 1, 2])
    for lie in ((("x", 32, 11), SMALL[1]), (("x", 64, 10), SMALL[1]), SMALL[:1], SMALL[::-1]):
        assert refused(study, replace(request, outlines=(lie,)), "bad envelope")
    # Sites that signed different sizes of an array cannot be added up.
    mixed = study.request([0, 1, 2], {2: (("x", 32, 9), SMALL[1])})
    assert refused(study, mixed, "array 'x' differs between sites")
    mixed = study.request([0, 1, 2], {2: (("x", 16, 10), SMALL[1])})
    assert refused(study, mixed, "array 'x' differs between sites")


def test_the_minimum_holds_for_every_array():
    study = Study()
    some = study.request([0, 1, 2, 3], {2: SMALL[:1], 3: SMALL[:1]})
    assert study.compensator.settle(some) == {"x": True, "n": False}
    study.compensator.unmask(some.digest, "x", 0, 10)
    for ask in (
        lambda: study.compensator.unmask(some.digest, "n", 0, 4),
        lambda: study.compensator.unmask(some.digest, "n", 0, 0),
        lambda: study.compensator.residue(some.digest, "n"),
        lambda: study.compensator.residue(some.digest, "unheard of"),
    ):
        with pytest.raises(Declined, match="was not granted"):
            ask()
    scattered = {site: ((f"a{site}", 32, 5),) for site in range(3)}
    request = study.request([0, 1, 2], scattered, step=1, question=OTHER)
    assert refused(study, request, "no array has at least 3 sites")


def test_masks_of_an_array_that_some_sites_lack():
    study = Study()
    request = study.request([0, 1, 2, 3], {1: SMALL[1:]})
    assert study.compensator.settle(request) == {"x": True, "n": True}
    found = study.compensator.unmask(request.digest, "x", 0, 10)
    assert request.contributors("x") == [0, 2, 3]
    assert (found == masks(study, request, "x", 10, np.int32)).all()


def test_it_tells_for_whom_a_step_was_settled(lasting):
    """For a coordinator that lost its memory; it knew it before."""
    study = lasting()
    study.compensator.settle(study.request([4, 1, 0], step=3))
    study.restart()
    for step, flags in ((3, [1, 1, 0, 0, 1]), (2, [0] * 5)):
        answer = settled(context(study.compensator), settled_question(step, 5))
        assert answer.arrays["settled"].tolist() == flags
    for step in (-1, None, "3", 3.0, True, [3]):
        with pytest.raises(Declined, match="not well formed"):
            settled(context(study.compensator), Question("settled", options={"step": step}))


def test_nothing_is_told_of_what_was_not_settled():
    study = Study()
    request = study.request([0, 1, 2])
    with pytest.raises(Declined, match="not settled"):
        study.compensator.unmask(request.digest, "x", 0, 10)
    refused(study, study.request([0, 1]), "too few")
    study.compensator.settle(request)
    with pytest.raises(Declined, match="not settled"):
        study.compensator.unmask(study.request([0, 1, 2, 3]).digest, "x", 0, 10)


def test_chunks_are_bounded_whatever_the_size():
    study = Study(3)
    huge = (("w", 64, 2**48), ("v", 16, 2**48))
    request = study.request([0, 1, 2], dict.fromkeys(range(3), huge))
    study.compensator.settle(request)
    end = study.compensator.unmask(request.digest, "w", 2**48 - 3, 2**48)
    assert end.shape == (3,)
    assert study.compensator.unmask(request.digest, "v", 0, CHUNK // 2).nbytes == CHUNK
    for array, start, stop in [
        ("w", 0, CHUNK // 8 + 1),
        ("v", 0, CHUNK // 2 + 1),
        ("w", 2**48 - 1, 2**48 + 1),
        ("w", 5, 4),
        ("w", -1, 4),
        ("w", 0, 2**62),
    ]:
        with pytest.raises(Declined, match="no such chunk"):
            study.compensator.unmask(request.digest, array, start, stop)


def test_seeds_of_few_requests_are_held():
    study = Study(3)
    requests = [
        study.request([0, 1, 2], step=step, question=bytes([step]) * 32) for step in range(6)
    ]
    for request in requests:
        study.compensator.settle(request)
    with pytest.raises(Declined, match="settle it again"):
        study.compensator.unmask(requests[0].digest, "x", 0, 1)
    study.compensator.unmask(requests[-1].digest, "x", 0, 1)
    study.compensator.settle(requests[0])
    study.compensator.unmask(requests[0].digest, "x", 0, 1)


# Memory


def test_decisions_are_on_disk_before_anything_is_told(lasting, tmp_path):
    study = lasting()
    before = (tmp_path / "memory").read_bytes()
    refused(study, study.request([0, 1]), "too few")
    refused(study, study.request([0, 1, 2], envelopes={0: bytes(144)}), "bad envelope")
    assert (tmp_path / "memory").read_bytes() == before
    request = study.request([0, 1, 2])
    study.compensator.settle(request)
    lines = (tmp_path / "memory").read_text().splitlines()
    assert request.digest.hex() in lines[-1]
    for envelope in request.envelopes:  # hashes and names, no seeds
        assert study.seeds[envelope].hex() not in "".join(lines)
        assert envelope.hex() not in "".join(lines)


@pytest.mark.parametrize("torn", [1, 20, 10_000])
def test_a_torn_line_is_dropped_and_all_before_it_kept(lasting, tmp_path, torn):
    """Killed while writing the second decision: it was not told, so it may be made again."""
    study, path = lasting(changes=True), tmp_path / "memory"
    study.compensator.settle(study.request([0, 1, 2]))
    kept = path.read_bytes()
    second = study.request([0, 1, 2, 3], step=1, question=OTHER)
    study.compensator.settle(second)
    study.compensator.close()
    whole = path.read_bytes()
    path.write_bytes(whole[: max(len(kept), len(whole) - torn)])
    study.restart()
    assert path.read_bytes() == kept
    assert refused(study, study.request([0, 1, 2, 3]), "other survivors")
    study.compensator.settle(study.request([0, 1, 2, 4], step=1, question=OTHER))
    study.restart()
    assert refused(study, second, "other survivors")


def test_a_damaged_memory_stops_the_compensator(lasting, tmp_path):
    study, path = lasting(), tmp_path / "memory"
    study.compensator.settle(study.request([0, 1, 2]))
    study.compensator.close()
    path.write_bytes(path.read_bytes().replace(b'"step', b"step", 1))
    with pytest.raises(DataError, match="damaged"):
        Compensator(study.third, study.roster, path)


def test_two_processes_do_not_share_a_memory(lasting, tmp_path):
    study = lasting()
    with pytest.raises(DataError, match="in use"):
        Compensator(study.third, study.roster, tmp_path / "memory")
    study.compensator.close()
    Compensator(study.third, study.roster, tmp_path / "memory").close()


def test_a_memory_belongs_to_one_study(lasting, tmp_path):
    lasting().compensator.close()
    roster, _, third = simulated_roster(1, "another", 5)
    with pytest.raises(DataError, match="another study"):
        Compensator(third, roster, tmp_path / "memory")
    lasting().compensator.close()  # nor is it locked by the attempt


def test_a_new_roster_does_not_make_it_forget(lasting):
    """A roster without the last site, agreed by the others: its answer stays hidden."""
    old = lasting(5)
    old.compensator.settle(old.request([0, 1, 2, 3, 4]))
    old.compensator.close()
    new = lasting(4)
    assert refused(new, new.request([0, 1, 2, 3]), "settled under another roster")
    for question in (QUESTION, OTHER):
        again = new.request([0, 1, 2, 3], step=1, question=question)
        assert refused(new, again, "too few sites")


def test_without_a_working_memory_nothing_is_told(lasting, monkeypatch):
    study = lasting()

    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(study.compensator._memory, "update", full)
    request = study.request([0, 1, 2])
    for _ in range(2):
        assert refused(study, request, "cannot write its memory")
        with pytest.raises(Declined, match="not settled"):
            study.compensator.unmask(request.digest, "x", 0, 10)
    monkeypatch.undo()
    assert refused(study, request, "cannot write its memory")
    study.restart()
    study.compensator.settle(request)


# Over engines, and hostile questions


def context(compensator):
    return SiteContext(0, compensator, None, StateStore(), None)


def ask(engine, question):
    ((_, answer),) = engine.gather(question, [0]).items()
    return answer.arrays


def talk(engine, study):
    request = study.request([0, 1, 3])
    assert ask(engine, request.to_question())["granted"].tolist() == [True, True]
    told = ask(engine, unmask_question(request, [("x", 2, 10), ("n", 0, 4)]))
    assert set(told) == {SUM + "x", SUM + "n", CHECK + "n"}
    assert (told[SUM + "x"] == masks(study, request, "x", 10, np.int32)[2:]).all()
    residue = from_bytes(told[CHECK + "n"])
    assert residue == sum(mask_residue(study.key(request, place, "n")) for place in range(3)) % P
    return request


def test_a_request_survives_its_message():
    study = Study()
    request = study.request([3, 0, 2], {0: SMALL[:1]}, step=2**40, attempt=2**50)
    question = request.to_question()
    assert Request.from_question(question) == request
    assert Request.from_question(decode_question(encode_question(question))) == request


def test_the_compensator_as_an_engines_only_site():
    study, lines = Study(), []
    with InProcess(CompensatorHost(study.compensator), ledger=Ledger(lines.append)) as engine:
        talk(engine, study)
        engine.gather(study.request([0, 1]).to_question(), [0])
        assert lines[-1]["failed"] == {0: "too few sites (2 of at least 3)"}


def test_other_sites_are_no_compensator():
    study = Study()
    for ask_for in (settle, unmask):
        with pytest.raises(Declined, match="no compensator"):
            ask_for(context("data"), study.request([0, 1, 2]).to_question())


def test_the_factory_makes_it_from_plain_values(tmp_path):
    roster = Study().roster
    host = compensator_host(roster.to_json(), seed=1, memory=str(tmp_path))
    assert (len(host), host.data(0).roster) == (1, roster)
    assert host.workspace() is None
    host.data(0).close()
    own = Identity.create(tmp_path / "key", "compensator")
    real = Roster("study", roster.sites, own.public)
    compensator_host(real.to_json(), key=str(tmp_path / "key"))
    for config in [{}, {"seed": 2}, {"key": str(tmp_path / "key")}]:
        with pytest.raises(FederationError, match="key"):
            compensator_host(roster.to_json(), **config)
    with pytest.raises(FederationError, match="no compensator"):
        compensator_host(Roster("study", roster.sites).to_json(), seed=1)


@pytest.mark.slow
def test_a_killed_compensator_remembers(tmp_path):
    study, lines = Study(), []
    config = {"roster": study.roster.to_json(), "seed": 1, "memory": str(tmp_path)}
    factory = "cupola.secure.compensator:compensator_host"
    with SeparateProcesses(factory, config, 1, ledger=Ledger(lines.append)) as engine:
        request = talk(engine, study)
        engine._children[0]._process.send_signal(signal.SIGKILL)
        engine._children[0]._process.wait()
        engine.gather(study.request([0, 1, 2, 3], attempt=9).to_question(), [0])
        code = "step settled for other survivors: site 0, site 1, site 3"
        assert lines[-1]["failed"] == {0: code}
        assert ask(engine, request.to_question())["granted"].all()


STUDY = Study(leaves=[1])
GOOD = STUDY.request([0, 1, 2])
OPTIONS = dict(GOOD.to_question().options)
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)
ODD_ARRAYS = st.sampled_from(
    [
        np.zeros(0),
        np.zeros(3),
        np.zeros((), np.int32),
        np.zeros(3, np.int64),
        np.zeros((3, 1), np.int32),
        np.full(3, 2**31 - 1, np.int32),
        np.full(3, -1, np.int32),
        np.arange(4, dtype=np.int32),
        np.zeros((3, 144), np.int8),
        np.zeros((3, 143), np.uint8),
        np.zeros((2**10, 144), np.uint8),
        np.zeros((3, 144), np.uint8),
        np.zeros((0, 144), np.uint8),
        np.array(["a", "b", "c"]),
        np.array([None, 1, 2], object),
    ]
)


@given(
    st.dictionaries(st.sampled_from([*OPTIONS, "more"]), ANY, max_size=3),
    st.dictionaries(st.sampled_from(["sites", "layout", "envelopes", "more"]), ODD_ARRAYS),
    st.sets(st.sampled_from([*OPTIONS, "sites", "layout", "envelopes"]), max_size=2),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_fuzzed_requests_are_declined_or_are_the_good_one(options, arrays, missing):
    good = GOOD.to_question()
    question = Question(
        "settle",
        {k: v for k, v in {**good.arrays, **arrays}.items() if k not in missing},
        {k: v for k, v in {**good.options, **options}.items() if k not in missing},
    )
    fresh = Compensator(STUDY.third, STUDY.roster)
    try:
        answer = settle(context(fresh), question)
    except Declined as declined:
        code = declined.code
    else:
        assert Request.from_question(question).digest == GOOD.digest
        assert answer.arrays["granted"].tolist() == [True, True]
        return
    assert code.isprintable()
    assert fresh._memory.get("step 0") is None


@given(st.integers(0, 3 * 144 - 1), st.integers(1, 255))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_changed_byte_of_an_envelope_changes_no_total(where, change):
    question = GOOD.to_question()
    envelopes = question.arrays["envelopes"].copy()
    envelopes.reshape(-1)[where] ^= change
    tampered = replace(question, arrays={**question.arrays, "envelopes": envelopes})
    with pytest.raises(Declined, match=f"bad envelope from site site {where // 144}"):
        settle(context(Compensator(STUDY.third, STUDY.roster)), tampered)


UNMASK = dict(unmask_question(GOOD, [("x", 0, 10)]).options)
ODD = st.sampled_from([None, True, 1.5, "1", [], {}, -1, 2**70])
PARTS = st.lists(
    st.tuples(st.sampled_from(["x", "n", "y", "\ud800"]) | ODD, *[st.integers(-2, 12) | ODD] * 2),
    max_size=3,
)


@given(
    st.dictionaries(st.sampled_from([*UNMASK, "more"]), ODD, max_size=2),
    st.none() | PARTS,
    st.sets(st.sampled_from([*UNMASK]), max_size=1),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_fuzzed_chunks_are_declined_or_what_they_ask_for(options, parts, missing):
    asked = {**UNMASK, **options} | ({} if parts is None else {"parts": parts})
    question = Question("unmask", {}, {k: v for k, v in asked.items() if k not in missing})
    STUDY.compensator.settle(GOOD)
    try:
        answer = unmask(context(STUDY.compensator), question)
    except Declined as declined:
        code = declined.code
    else:
        sizes = {"x": (10, np.int32), "n": (4, np.int64)}
        for name, start, stop in asked["parts"]:
            whole = masks(STUDY, GOOD, name, *sizes[name])
            assert (answer.arrays[SUM + name] == whole[start:stop]).all()
        return
    assert code.isprintable()


def test_hostile_names_do_not_come_back():
    """An array's name in a refusal is one that could be an array's name."""
    STUDY.compensator.settle(GOOD)
    for name in ("\ud800", "a\nb", "x" * 1000, "", ["x"], 3):
        question = Question("unmask", {}, {**UNMASK, "parts": [[name, 0, 1]]})
        with pytest.raises(Declined, match="not well formed"):
            unmask(context(STUDY.compensator), question)
    question = GOOD.to_question()
    hostile = {**question.options, "layouts": [[["\ud800", 32, 10]]]}
    with pytest.raises(Declined, match="not well formed"):
        settle(context(STUDY.compensator), replace(question, options=hostile))


def test_parts_are_bounded_together():
    study = Study(3)
    huge = tuple((f"w{i}", 64, 2**40) for i in range(3))
    request = study.request([0, 1, 2], dict.fromkeys(range(3), huge))
    study.compensator.settle(request)
    third = CHUNK // 24
    for stop, fits in ((third, True), (third + 1, False)):
        question = unmask_question(request, [(f"w{i}", 5, 5 + stop) for i in range(3)])
        if fits:
            told = unmask(context(study.compensator), question).arrays
            assert sum(array.nbytes for array in told.values()) <= CHUNK
        else:
            with pytest.raises(Declined, match="more than a chunk"):
                unmask(context(study.compensator), question)
    twice = unmask_question(request, [("w0", 0, 1), ("w0", 1, 2)])
    with pytest.raises(Declined, match="not well formed"):
        unmask(context(study.compensator), twice)


@given(
    st.lists(st.tuples(st.sampled_from([16, 32, 64]), st.integers(0, 3 * CHUNK // 8)), max_size=6)
)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_chunks_cover_every_array_once(sizes):
    arrays = {f"a{i}": size for i, size in enumerate(sizes)}
    reached = dict.fromkeys(arrays, 0)
    begun = set()
    for parts in chunks(arrays):
        assert len({name for name, _, _ in parts}) == len(parts)
        assert sum((stop - start) * arrays[name][0] for name, start, stop in parts) <= 8 * CHUNK
        for name, start, stop in parts:
            assert start == reached[name]
            reached[name] = stop
            begun |= {name} if start == 0 else set()
    assert reached == {name: size for name, (_, size) in arrays.items()}
    assert begun == set(arrays)
