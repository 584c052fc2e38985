"""Masked sums over the engines: equal to plain sums, for whoever survives; attacks end to end."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from studies import Sites

from cupola.engines import InProcess, SeparateProcesses, masked_sums
from cupola.errors import FederationError
from cupola.federation import Question, Spec
from cupola.federation.ledger import COMPENSATOR, Ledger
from cupola.secure import simulated_parties
from cupola.secure.wrapped_question import layout_of


def masked(host, *, minimum=3, folder=None, ledger=None, study="study", changes=False):
    parties = simulated_parties(study, seed=1, sites=len(host), minimum=minimum, changes=changes)
    engine = InProcess(host, seed=3, parties=parties.member, ledger=ledger)
    return masked_sums(engine, parties, folder)


def compare(plain, hidden, question, asked):
    """Equal exactly for integers, to the stated bits for floats."""
    assert hidden.sites == plain.sites
    assert hidden.failed == plain.failed
    assert hidden.weight == plain.weight
    for entry in layout_of(question, asked):
        if entry.name in plain.arrays:
            wrong = np.abs(hidden.arrays[entry.name] - plain.arrays[entry.name])
            # float32 values times small whole weights: the plain sum in float64 is exact here
            assert wrong.max(initial=0.0) <= entry.error
            assert hidden.weights[entry.name] == plain.weights[entry.name]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    sites=st.integers(3, 9),
    shape=st.lists(st.integers(0, 7), max_size=3),
    bound=st.floats(1e-3, 1e6),
    whole=st.integers(1, 2**40),
    data=st.data(),
)
def test_masked_sums_equal_plain_sums(sites, shape, bound, whole, data):
    host = Sites(sites, shape, bound, whole)
    away = data.draw(st.sets(st.integers(0, sites - 1), max_size=sites - 3))
    asked = data.draw(st.permutations(range(sites)))
    question = host.question(options={str(site): "decline" for site in away})
    with InProcess(host, seed=3) as plain, masked(host) as hidden:
        compare(plain.sum(question, asked), hidden.sum(question, asked), question, sites)


def test_the_bytes_engine_gives_the_same_total(tmp_path):
    host, study = Sites(4, (5,)), "bytes"
    question = host.question(options={"2": "decline"})
    parties = simulated_parties(study, seed=1, sites=4)
    made = ("studies:Sites", {"sites": 4, "shape": [5]}, 4)
    with (
        masked(host, study=study) as here,
        SeparateProcesses(*made, seed=3, folder=tmp_path, party=parties.recipe) as engine,
        masked_sums(engine, parties, tmp_path, own_processes=True) as there,
    ):
        one, two = here.sum(question, range(4)), there.sum(question, range(4))
        again = there.sum(question, range(4))  # after a crash: fresh masks, same total
    assert one.sites == two.sites == [0, 1, 3]
    for name in one.arrays:
        assert (one.arrays[name] == two.arrays[name]).all()
        assert (one.arrays[name] == again.arrays[name]).all()


def test_sites_with_different_arrays_have_a_minimum_per_array():
    host = Sites(5, (2,), absent={0: ["x"], 1: ["x", "n"], 2: ["x", "n"]})
    question = host.question(partial=True)
    with InProcess(host) as plain, masked(host) as hidden:
        expected, found = plain.sum(question, range(5)), hidden.sum(question, range(5))
    assert set(found.arrays) == {"n", "b"}  # two sites have 'x': their sum is not told
    for name in found.arrays:
        assert np.allclose(found.arrays[name], expected.arrays[name])
        assert found.weights[name] == expected.weights[name]


def test_nan_never_leaves_the_site():
    host = Sites(4)
    with masked(host) as hidden:
        total = hidden.sum(host.question(options={"1": "nan"}), range(4))
    assert total.sites == [0, 2, 3]
    assert total.failed[1] == "NaN or infinity in 'x'"


@pytest.mark.parametrize("what", ["large", "many", "heavy"])
def test_what_is_beyond_its_bound_is_told_of_the_total_only(what):
    """Every site answers alike, so that bounds cannot be used to search for a site's numbers."""
    host, lines = Sites(4), []
    with (
        masked(host, ledger=Ledger(lines.append)) as hidden,
        pytest.raises(FederationError, match=r"beyond their agreed bounds: \d+; at which site"),
    ):
        hidden.sum(host.question(options={"1": what}), range(4))
    assert all(not line["failed"] for line in lines)


def test_too_few_sites_are_not_even_asked():
    host = Sites(5)
    with masked(host) as hidden:
        total = hidden.sum(host.question(), [1, 2])
        assert hidden.ledger.bytes_down == 0
        later = hidden.sum(host.question(step=1, options={"0": "decline"}), [0, 1, 2])
    assert total.sites == later.sites == []
    assert set(total.failed) == {1, 2}
    assert set(later.failed) == {0, 1, 2}


def test_two_sites_need_a_minimum_of_two():
    host = Sites(2)
    with pytest.raises(Exception, match="minimum"):
        masked(host)
    question = host.question()
    with InProcess(host) as plain, masked(host, minimum=2) as hidden:
        compare(plain.sum(question, [0, 1]), hidden.sum(question, [0, 1]), question, 2)


def test_the_same_question_goes_to_one_cohort_only():
    host = Sites(5)
    with masked(host) as hidden:
        hidden.sum(host.question(step=0, round=1), range(5))
        hidden.sum(host.question(step=1, round=2), range(5))  # same cohort, same total
        with pytest.raises(FederationError, match="no total is told without site 4"):
            hidden.sum(host.question(step=2, round=3), range(4))


def test_an_answer_drawn_anew_may_go_to_another_cohort():
    host = Sites(5)

    def question(step):
        return Question("study draws", expects={"x": Spec((3,), bound=1.0)}, step=step, round=step)

    with masked(host, changes=True) as hidden:
        hidden.sum(question(1), range(5))
        assert hidden.sum(question(2), range(4)).sites == [0, 1, 2, 3]


def test_a_step_is_told_once(tmp_path):
    host = Sites(5)
    with masked(host, folder=tmp_path) as hidden:
        first = hidden.sum(host.question(), range(5))
    with masked(host, folder=tmp_path) as hidden:  # a new compensator with the old memory
        again = hidden.sum(host.question(), range(5))
        with pytest.raises(FederationError, match="other survivors"):
            hidden.sum(host.question(), [0, 1, 2, 4])
    assert all((first.arrays[name] == again.arrays[name]).all() for name in first.arrays)


def test_a_step_settled_before_a_crash_is_told_for_its_survivors_only(tmp_path):
    host = Sites(5)
    host.away = {4}
    with masked(host, folder=tmp_path) as hidden:
        first = hidden.sum(host.question(), range(5))
    host.away = set()
    with masked(host, folder=tmp_path) as hidden:
        again = hidden.sum(host.question(), range(5))
    host.away = {3}
    with (
        masked(host, folder=tmp_path) as hidden,
        pytest.raises(FederationError, match="other survivors"),
    ):
        hidden.sum(host.question(), range(5))
    assert again.sites == first.sites == [0, 1, 2, 3]


def test_another_question_under_the_same_step_is_refused_by_the_sites():
    host = Sites(4)
    with masked(host) as hidden:
        hidden.sum(host.question(), range(4))
        total = hidden.sum(host.question(arrays={"y": np.zeros(1)}), range(4))
    assert total.sites == []
    assert set(total.failed.values()) >= {"another question was answered under this step"}


def test_a_wrong_total_is_found_out(monkeypatch):
    host = Sites(4)
    with masked(host) as hidden:
        ask = hidden.compensator.ask

        def changed(question, sites):
            for site, answer in ask(question, sites):
                if "sum/x" in answer.arrays:
                    answer.arrays["sum/x"][0] += 1
                yield site, answer

        monkeypatch.setattr(hidden.compensator, "ask", changed)
        with pytest.raises(FederationError, match="checksum is wrong"):
            hidden.sum(host.question(), range(4))


def test_a_changed_answer_is_found_out(monkeypatch):
    host = Sites(4)
    with masked(host) as hidden:
        ask = hidden.engine.ask

        def changed(question, sites):
            for site, answer in ask(question, sites):
                if site == 2:
                    answer.arrays["masked/n"][1] ^= 1
                yield site, answer

        monkeypatch.setattr(hidden.engine, "ask", changed)
        with pytest.raises(FederationError, match="checksum is wrong"):
            hidden.sum(host.question(), range(4))


def singled_out(monkeypatch, hidden, change):
    """A coordinator that asks site 1 another question than the rest."""
    ask = hidden.engine.ask

    def differently(question, sites):
        for site in sites:
            yield from ask(change(question) if site == 1 else question, [site])

    monkeypatch.setattr(hidden.engine, "ask", differently)


def other_options(question, part, **changes):
    options = {**question.options, part: {**question.options[part], **changes}}
    return replace(question, options=options)


def test_one_site_cannot_be_given_a_scale_of_its_own(monkeypatch):
    """Its numbers would stand out in the total, or be all that is left of it."""
    host = Sites(4)

    def finer(question):
        expects = dict(question.options["inner"]["expects"])
        expects["x"] = [*expects["x"][:2], 1e-6, 64]
        return other_options(question, "inner", expects=expects)

    with masked(host) as hidden:
        singled_out(monkeypatch, hidden, finer)
        with pytest.raises(FederationError, match="bad envelope from site site 1"):
            hidden.sum(host.question(), range(4))


def test_one_site_cannot_be_given_a_checksum_of_its_own(monkeypatch):
    """It would give away a sum over its numbers alone."""
    host = Sites(4)
    with masked(host) as hidden:
        singled_out(monkeypatch, hidden, lambda q: other_options(q, "hidden", check="11" * 32))
        with pytest.raises(FederationError, match="bad envelope from site site 1"):
            hidden.sum(host.question(), range(4))


def test_one_site_cannot_be_asked_another_question(monkeypatch):
    host = Sites(4)
    with masked(host) as hidden:
        singled_out(monkeypatch, hidden, lambda q: other_options(q, "inner", options={"a": 1}))
        with pytest.raises(FederationError, match="bad envelope from site site 1"):
            hidden.sum(host.question(), range(4))


def test_bounds_cannot_be_used_to_search_for_numbers():
    """The count of numbers beyond a bound is told once: other bounds are another encoding."""
    host = Sites(4)
    with masked(host) as hidden:
        hidden.sum(host.question(), range(4))
        question = host.question(step=1)
        expects = {**question.expects, "x": replace(question.expects["x"], bound=41.0)}
        again = hidden.sum(replace(question, expects=expects), range(4))
    assert set(again.failed.values()) == {"the question was answered with other bounds"}


def test_bytes_are_counted_with_the_compensator():
    host, lines = Sites(4, (1000,)), []
    with masked(host, ledger=Ledger(lines.append)) as hidden:
        hidden.sum(host.question(), range(4))
    told, unmasked = sorted(lines, key=lambda line: line["kind"])
    assert told["task"] == "study numbers"
    assert "masked" in told["protection"]
    assert unmasked["sites"] == [COMPENSATOR]
    # 64-bit x, 32-bit n, 16-bit b, the weight, four checksums, a sealed seed
    assert 14_000 < told["bytes_up"] < 15_000
    assert 14_000 < unmasked["bytes_up"] < 15_500
    assert unmasked["bytes_down"] < 10_000


def test_an_array_without_a_bound_is_refused():
    host = Sites(4)
    question = host.question(expects={"x": Spec((3,)), "n": Spec((3,)), "b": Spec((3,))})
    with masked(host) as hidden, pytest.raises(FederationError, match="bound"):
        hidden.sum(question, range(4))
