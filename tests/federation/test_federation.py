"""sum and gather on both engines: totals, checks, quorum, time-outs, ledger, state."""

import hosts
import numpy as np
import pytest

from cupola.engines import InProcess, SeparateProcesses
from cupola.errors import FederationError
from cupola.federation import Question, Spec
from cupola.federation.message import contribution_size, question_size

X = {"x": Spec((3,))}


@pytest.fixture(params=["in-process", "separate"])
def engine(request):
    made = []

    def make(**settings):
        if request.param == "in-process":
            settings.pop("timeout", None)
            federation = InProcess(hosts.Numbers(), **settings)
        else:
            federation = SeparateProcesses("hosts:Numbers", {}, 4, **settings)
        made.append(federation)
        return federation

    yield make
    for federation in made:
        federation.close()


def test_sum_is_weighted_and_float64(engine):
    total = engine().sum(Question("test numbers", expects=X), [0, 1, 3])
    expected = 1 * np.array([0, 1, 2]) + 2 * np.array([1, 2, 3]) + 4 * np.array([3, 4, 5])
    assert total.arrays["x"].dtype == np.float64
    assert (total.arrays["x"] == expected).all()
    assert total.weight == 7
    assert np.allclose(total.mean("x"), expected / 7)
    assert total.sites == [0, 1, 3]


def test_gather_shows_each_answer(engine):
    answers = engine().gather(Question("test numbers", expects=X), [2, 0])
    assert list(answers) == [0, 2]
    assert (answers[2].arrays["x"] == [2, 3, 4]).all()


def test_nobody_asked_gives_an_empty_total(engine):
    total = engine().sum(Question("test numbers", expects=X), [])
    assert total.weight == 0
    assert total.arrays == {}


BROKEN = {
    "nan": "NaN or infinity in 'x'",
    "shape": "ill-shaped array 'x'",
    "extra": "unexpected array 'secret'",
    "missing": "missing array 'x'",
    "weight": "invalid weight",
    "decline": "not today",
    "data error": "column 'age' is missing",
}


def test_bad_answers_are_left_out_and_named(engine):
    options = {str(i): w for i, w in enumerate(["nan", "answer", "extra", "decline"])}
    total = engine().sum(Question("test misbehave", options=options, expects=X), range(4))
    assert total.sites == [1]
    assert total.failed == {0: BROKEN["nan"], 2: BROKEN["extra"], 3: BROKEN["decline"]}


@pytest.mark.parametrize("what", BROKEN)
def test_every_kind_of_bad_answer(what):
    question = Question("test misbehave", options={"0": what}, expects=X)
    with InProcess(hosts.Numbers()) as federation:
        assert federation.sum(question, [0, 1]).failed == {0: BROKEN[what]}


def test_only_broken_answers_stop_the_question(engine):
    question = Question("test misbehave", options={"0": "nan"}, expects=X, round=7)
    with pytest.raises(FederationError, match=r"round 7: 0 of 1 sites answered.*site 0: NaN"):
        engine().sum(question, [0])


def test_quorum(engine):
    question = Question("test misbehave", options={"0": "decline"}, expects=X)
    federation = engine(quorum=0.75)
    assert federation.sum(question, range(4)).sites == [1, 2, 3]
    with pytest.raises(FederationError, match="quorum is 75%"):
        federation.sum(question, [0, 1])


def test_unknown_task_is_refused(engine):
    with pytest.raises(FederationError, match="no task is named 'sing'"):
        engine(quorum=0.5).sum(Question("sing", expects=X), [0])


def test_ledger_counts_what_is_sent(engine):
    federation = engine()
    question = Question("test numbers", {"scale": np.ones(3)}, expects=X, reveals="numbers")
    federation.sum(question, [0, 2])
    answer = contribution_size({"x": np.zeros(3)})
    assert federation.ledger.up == {0: answer, 2: answer}
    asked = question_size(question)
    assert federation.ledger.down == {0: asked, 2: asked}
    assert federation.ledger.bytes_up == 2 * answer


def test_randomness_depends_on_round_and_site_only(engine):
    federation = engine(seed=3)
    first = federation.gather(Question("test draw", expects=X, round=1), [0, 1])
    again = federation.gather(Question("test draw", expects=X, round=1, step=5), [1])
    later = federation.gather(Question("test draw", expects=X, round=2, step=6), [1])
    assert (first[1].arrays["x"] == again[1].arrays["x"]).all()
    assert (first[0].arrays["x"] != first[1].arrays["x"]).all()
    assert (later[1].arrays["x"] != again[1].arrays["x"]).all()


def test_engines_draw_alike():
    with (
        InProcess(hosts.Numbers(), seed=3) as a,
        SeparateProcesses("hosts:Numbers", {}, 4, seed=3) as b,
    ):
        question = Question("test draw", expects=X, round=1)
        one, two = a.sum(question, range(4)), b.sum(question, range(4))
    assert (one.arrays["x"] == two.arrays["x"]).all()


def test_state_is_versioned_by_step(engine):
    federation = engine()
    expects = {"n": Spec(())}

    def ask(step):
        return federation.sum(Question("test count", expects=expects, step=step), [0]).arrays["n"]

    assert ask(0) == 0
    assert ask(1) == 1
    assert ask(1) == 1  # asked again: starts from the same state
    federation.confirm(1)
    assert ask(2) == 2


def test_site_state_survives_the_processes(tmp_path):
    expects = {"n": Spec(())}
    counts = []
    for step in (0, 1, 1, 2):
        with SeparateProcesses("hosts:Numbers", {}, 2, folder=tmp_path) as federation:
            question = Question("test count", expects=expects, step=step)
            counts.append(float(federation.sum(question, [0]).arrays["n"]))
    assert counts == [0, 1, 1, 2]


def test_late_and_dead_sites_are_left_out_and_return():
    federation = SeparateProcesses("hosts:Numbers", {}, 4, timeout=60)
    with federation:
        federation.sum(Question("test numbers", expects=X), range(4))  # all are up
        federation.timeout = 1.5
        options = {"0": "sleep", "1": "die"}
        total = federation.sum(Question("test misbehave", options=options, expects=X), range(4))
        assert total.sites == [2, 3]
        assert total.failed == {0: "late", 1: "dead"}
        federation.timeout = 60
        assert federation.sum(Question("test numbers", expects=X), [1, 2]).sites == [1, 2]


def test_errors_at_a_site_cross_as_codes(capfd):
    with SeparateProcesses("hosts:Numbers", {}, 2) as federation:
        options = {"0": "bug", "1": "print"}
        total = federation.sum(Question("test misbehave", options=options, expects=X), [0, 1])
    assert total.failed == {0: "error at the site (ZeroDivisionError)"}
    assert total.sites == [1]  # chatter on standard output does not disturb the answers
    assert "secret value 42" in capfd.readouterr().err  # it stays in the site's own log


def test_a_federation_needs_sites():
    with pytest.raises(FederationError, match="at least one site"):
        InProcess(hosts.Numbers(0))
