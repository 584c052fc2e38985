"""Many canaries in one run, and canaries for texts."""

import numpy as np
import pytest
import torch
from audit_data import BASE, plan
from faults import less_noise

import cupola
from cupola.audit import Subject
from cupola.audit.canaries import of_sites, row_canary
from cupola.audit.onerun import Canaries, _judged, one_run_audit, possible

TEXT = {
    "name": "text",
    "rounds": 2,
    "model": {
        "name": "transformer", "width": 8, "heads": 2, "hidden": 16, "layers": 1, "dropout": 0.0
    },
    "data": {"name": "audit_data:texts", "partition": {"kind": "iid", "sites": 4}},
}  # fmt: skip
MECHANISMS = {
    "row": {
        "local": {"work": "batches", "batches": 1, "batch_size": 20, "lr": 0.1},
        "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0},
    },
    "site": {
        "local": {"epochs": 1, "batch_size": 8, "lr": 0.1, "weighting": "uniform"},
        "privacy": {"mechanism": "central", "noise_multiplier": 1.0},
    },
}


@pytest.fixture(scope="module")
def subject(tmp_path_factory):
    folder = tmp_path_factory.mktemp("many") / "run"
    cupola.run(plan("dp-sgd"), folder, report=False)
    return Subject.open(folder, 3)


def test_those_present_add_their_gradients_and_the_others_none():
    marks = Canaries(np.array([True, False, True]), torch.eye(3), {1: -1.0})
    index, found = marks.drawn(np.array([0, 1, 4, 7]), 1)
    assert index.tolist() == [4, 7]
    assert [mark.tolist() for mark in found] == [[-1, 0, 0]]


def test_a_sound_run_is_guessed_no_better_than_promised_and_a_quiet_one_is(subject, monkeypatch):
    site = subject.site()
    assert possible(subject, site)
    events = subject.events(site)

    def audited():
        return one_run_audit(subject, site, events, trials=500, seed=1, level=1e-3)

    found = audited()
    assert not found["refutes"]
    assert found["runs"] == 50
    assert found["reach"] > found["claim"], "all guesses right would refute it"
    less_noise("dp-sgd", monkeypatch, 0.1)
    found = audited()
    assert found["refutes"]
    assert found["right"] > 0.95 * found["guesses"]


def test_false_alarms_of_coins_that_fall_as_promised():
    """Randomised response at just the promised epsilon."""
    random, claim = np.random.default_rng(2), 1.0
    alarms = 0
    for _ in range(300):
        truth = random.random(400) < 0.5
        told = truth ^ (random.random(400) > 1 / (1 + np.exp(-claim)))
        scores = told + 0.1 * random.random(400)
        alarms += _judged(scores, truth, [(1e-12, claim)], 0.05)["refutes"]
    assert alarms <= 15


@pytest.mark.parametrize("kind", MECHANISMS)
def test_a_text_that_says_one_rare_word_is_longer_than_the_clip(kind, tmp_path):
    cupola.run({**BASE, **TEXT, **MECHANISMS[kind]}, tmp_path / "run", report=False)
    subject = Subject.open(tmp_path / "run", 2)
    where = (subject, subject.site(), 1)
    made = row_canary(*where) if kind == "row" else of_sites(*where)[0]
    assert made.strength > 2
    assert np.isfinite(made.trial(True, 3)).all()
    assert not np.array_equal(made.trial(True, 3), made.trial(False, 3)), "it shows"
