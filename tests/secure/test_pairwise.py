"""Pairwise masks: equal to plain sums, whoever drops out and when."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pairs import PHASES, Study, carry_out
from studies import Sites

from cupola.engines import InProcess, SeparateProcesses
from cupola.errors import FederationError
from cupola.federation import Question, Spec
from cupola.federation.ledger import Ledger
from cupola.secure import pairwise_keys, simulated_parties
from cupola.secure.graph import Graph, graph
from cupola.secure.pairwise import Pairwise
from cupola.secure.pairwise_masks import Table
from cupola.secure.traffic import expected_traffic
from cupola.secure.wrapped_question import layout_of


def same(found, plain, question, asked):
    """Equal exactly for integers, to the stated bits for floats."""
    assert found.sites == plain.sites
    assert found.weight == plain.weight
    for entry in layout_of(question, asked):
        if entry.name in plain.arrays:
            wrong = np.abs(found.arrays[entry.name] - plain.arrays[entry.name])
            assert wrong.max(initial=0.0) <= entry.error
            assert found.weights[entry.name] == plain.weights[entry.name]


def fate(study, sites):
    """What is to come of a sum: its survivors, or the failure's name."""
    left = [
        [site for site in range(sites) if study.gone.get(site, len(PHASES)) > phase]
        for phase in range(len(PHASES))
    ]
    if len(left[0]) < 3:
        return "too few"
    numbers = graph(len(left[0]), 3)
    if min(len(left[1]), len(left[2])) < max(3, numbers.quorum):
        return "too few"
    if len(left[3]) < numbers.quorum:
        return "signatures"
    return left[2] if len(left[4]) >= numbers.threshold else "cannot be restored"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    sites=st.integers(3, 8),
    shape=st.lists(st.integers(0, 5), max_size=2),
    bound=st.floats(1e-3, 1e6),
    whole=st.integers(1, 2**40),
    data=st.data(),
)
def test_equal_to_plain_sums_whoever_drops_out_when(sites, shape, bound, whole, data):
    study = Study(host=Sites(sites, shape, bound, whole))
    gone = data.draw(st.sets(st.integers(0, sites - 1), max_size=sites // 2))
    study.gone = {site: data.draw(st.integers(0, 4)) for site in gone}
    study.late = data.draw(st.sets(st.sampled_from(sorted(gone)))) if gone else set()
    question, expected = study.host.question(), fate(study, sites)
    asked = data.draw(st.permutations(range(sites)))
    if expected == "too few":
        total = study.sum(question, asked)
        assert total.sites == []
        assert total.arrays == {}
        assert set(total.failed) == set(range(sites))
    elif isinstance(expected, str):
        with pytest.raises(FederationError, match=expected):
            study.sum(question, asked)
    else:
        total = study.sum(question, asked)
        same(total, study.plain(question, expected), question, sites)
        assert set(total.failed) == set(range(sites)) - set(expected)


def test_the_bytes_engine_gives_the_same_total(tmp_path):
    host = Sites(4, (4,))
    question = host.question(options={"2": "decline"})
    parties = simulated_parties("bytes", seed=1, sites=4, protocol="pairwise", changes=True)
    made = ("pairs:sites", {"sites": 4, "shape": [4]}, 4)
    with SeparateProcesses(*made, seed=3, folder=tmp_path, party=parties.recipe) as engine:
        federation = Pairwise(engine, parties.roster)
        total = federation.sum(question, range(4))
        engine._children[1].stop()  # it comes back with its memory, without its secrets
        again = federation.sum(question, range(4))
        other = host.question(1, arrays={"more": np.zeros(2)})
        whole = federation.sum(other, range(4))
    with InProcess(host, seed=3) as plain:
        same(total, plain.sum(question, [0, 1, 3]), question, 4)
        same(whole, plain.sum(other, range(4)), other, 4)
    assert total.failed == {2: "not today"}
    assert again.sites == total.sites
    assert all((again.arrays[name] == total.arrays[name]).all() for name in total.arrays)


def test_sites_with_different_arrays_have_a_minimum_per_array():
    host = Sites(6, (2,), absent={0: ["x"], 1: ["x", "n"], 2: ["x", "n"], 5: ["x"]})
    study, question = Study(host=host), host.question(partial=True)
    study.gone = {5: 2}
    expected, found = study.plain(question, range(5)), study.sum(question, range(6))
    assert set(found.arrays) == {"n", "b"}  # two sites have 'x': their sum is not told
    for name in found.arrays:
        assert np.allclose(found.arrays[name], expected.arrays[name])
        assert found.weights[name] == expected.weights[name]
    assert found.weight == expected.weight


def test_nan_never_leaves_the_site():
    study = Study(4)
    total = study.sum(study.host.question(options={"1": "nan"}))
    assert total.sites == [0, 2, 3]
    assert total.failed[1] == "NaN or infinity in 'x'"


@pytest.mark.parametrize("what", ["large", "many", "heavy"])
def test_what_is_beyond_its_bound_is_told_of_the_total_only(what):
    study = Study(4)
    with pytest.raises(FederationError, match="beyond their agreed bounds"):
        study.sum(study.host.question(options={"1": what}))


def test_two_sites_with_a_minimum_of_two():
    study = Study(2, minimum=2)
    question = study.host.question()
    same(study.sum(question), study.plain(question, [0, 1]), question, 2)


def test_a_sparse_graph(monkeypatch):
    sparse = Graph(sites=14, picks=7, threshold=2, quorum=8)
    monkeypatch.setattr(pairwise_keys, "graph", lambda *_: sparse)
    study, question = Study(14), Sites(14, (3,)).question()
    study.gone = {1: 1, 5: 2, 7: 2, 9: 3, 11: 4}
    study.late = {7}
    run = study.run()
    carry_out(run, 2)
    degrees = {site: len(run.cohort.neighbours(site, run.dealt, run.edges)) for site in run.dealt}
    assert max(degrees.values()) < 13
    total = study.sum(question)
    same(total, study.plain(question, [s for s in range(14) if s not in (1, 5, 7)]), question, 14)


def test_many_steps_and_many_small_arrays():
    study = Study(4)
    names = [f"a{i}" for i in range(50)]
    expects = {name: Spec((2,), "float", 40.0) for name in names} | study.host.question().expects
    for step in range(3):
        question = study.host.question(step, expects=expects, partial=True)
        found, expected = study.sum(question), study.plain(question, range(4))
        assert set(found.arrays) == {"x", "n", "b"}
        assert (found.arrays["n"] == expected.arrays["n"]).all()


def test_bytes_are_booked_as_expected():
    lines, study = [], Study(6)
    study.federation.ledger = Ledger(lines.append)
    question = study.host.question()
    study.sum(question)
    sent = dict.fromkeys(range(6), frozenset(question.expects))
    told = expected_traffic(question, study.federation.roster, range(6), sent)
    ledger = study.federation.ledger
    assert ledger.bytes_down == 6 * told.down + told.beside_down
    assert ledger.bytes_up == sum(told.up) + told.beside_up
    assert {line["kind"] for line in lines} == {"sum", "unmask"}
    assert "masked sum of at least 3 sites" in lines[-1]["protection"]


def test_nothing_but_the_answer_is_charged():
    study = Study(4)
    asked = []

    class Book:
        def charge(self, question, charges):
            asked.append((question.task, question.step, set(charges.values())))
            return {}

    from cupola.federation.site import admit, find_task

    run = study.run(step=7)
    contexts = [study.engine.context(0)]
    carry_out(run, 2)
    admit(Book(), find_task("pairwise keys"), contexts, run.attempt.keys())
    admit(Book(), find_task("pairwise shares"), contexts, run.attempt.shares(run.cohort))
    outer = run.attempt.masked(run.cohort, run.dealt, run.edges)
    admit(Book(), find_task("pairwise masked"), contexts, outer)
    assert [(task, step) for task, step, _ in asked] == [
        ("pairwise keys", -1),
        ("pairwise keys", -1),
        ("study numbers", 7),
    ]
    assert asked[2][2] == {None}
    assert all(not charge.events for charge in asked[0][2])


def test_masked_answers_look_like_noise_and_never_repeat():
    study = Study(4, host=Sites(4, (2000,), whole=1))
    seen = []
    for number in (1, 2):
        run = study.run(number=number)
        carry_out(run, 2)
        question = run.attempt.masked(run.cohort, run.dealt, run.edges)
        seen.append(study.ask(0, question)["masked/n"])
    assert seen[0].dtype == np.int16
    for values in seen:
        bits = np.unpackbits(values.view(np.uint8)).reshape(-1, 16).mean(axis=0)
        assert np.abs(bits - 0.5).max() < 0.06
    assert (seen[0] == seen[1]).mean() < 0.01


def test_masks_over_arrays_side_by_side_cancel():
    host = Sites(3, (5,))
    layout = layout_of(host.question(), 3)
    statement = Study(3).run().attempt.statement
    table = Table(layout)
    table.mask(statement, [(b"s" * 32, 1), (b"t" * 32, -1)])
    assert all(array.any() for array in table.arrays.values())
    table.mask(statement, [(b"t" * 32, 1), (b"s" * 32, -1)])
    assert not any(array.any() for array in table.arrays.values())
    assert not any(table.checks.values())
    table.mask_some(statement, layout[:1], [(b"s" * 32, 1)])
    assert [array.any() for array in table.arrays.values()].count(True) == 1


def test_an_answer_drawn_anew_may_go_to_another_cohort():
    study = Study(5, changes=True)

    def question(step):
        return Question("study draws", expects={"x": Spec((3,), bound=1.0)}, step=step, round=step)

    study.sum(question(1))
    assert study.sum(question(2), range(4)).sites == [0, 1, 2, 3]
