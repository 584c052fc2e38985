"""The lower bound stays below the claim for every mechanism, and above it for broken ones."""

import pytest
from audit_data import PLANS, plan
from faults import less_noise, no_clip, reused_noise

import cupola
from cupola.audit import bounds as bounds_of
from cupola.audit.bounds import canary_audit
from cupola.audit.canaries import _gradient, _loud_rows, gradient_canary
from cupola.audit.registry import Audited
from cupola.audit.replayed_run import Subject

#: Enough to tell; a tenth of the noise needs more than a canary that is not clipped at all.
TRIALS = {
    "dp-sgd": {"correct": 160, "noise / 10": 320, "reused noise": 240, "no clipping": 160},
    "dp-sgd, replace-one": {"correct": 160},
    "output": {"correct": 300, "noise / 10": 700, "reused noise": 300, "no clipping": 700},
    "objective": {"correct": 300},
    "distributed": {"correct": 250, "noise / 10": 250, "reused noise": 250, "no clipping": 250},
}
SEED = 7


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("audited") / "run"
            cupola.run(plan(kind), folder, report=False)
            made[kind] = Subject.open(folder, rounds=3)
        return made[kind]

    return get


def audited(subject, kind, state, monkeypatch, only=None):
    """Findings, and lower bounds by canary; printed for who asks (pytest -s)."""
    if only is not None:
        made = Audited((), lambda *given: [only(*given)])
        monkeypatch.setattr(bounds_of, "audited", lambda _: made)
    trials = TRIALS.get(kind, {}).get(state, 700)
    found = canary_audit(subject, trials=trials, seed=SEED, confidence=0.99)
    bounds = {c["canary"]: c["lower_bound"]["epsilon"] for c in found["canaries"]}
    said = ", ".join(f"{name} {value:.2f}" for name, value in bounds.items())
    claim, most = found["claim"], found["reach"]
    print(f"\n{kind}, {state}: at least {said}; claim {claim:.2f}, reach {most:.2f}")
    return found, bounds


@pytest.mark.slow
@pytest.mark.parametrize("kind", PLANS)
def test_a_correct_mechanism_is_not_refuted(kind, subjects, monkeypatch):
    only = gradient_canary if "dp-sgd," in kind else None  # the row's turn comes below
    found, bounds = audited(subjects(kind), kind, "correct", monkeypatch, only)
    assert found["verdict"] == "consistent"
    assert max(bounds.values()) <= found["claim"]
    assert found["claim"] == pytest.approx(found["run_epsilon"], rel=1e-6), "all rounds repeated"
    assert found["reach"] > found["claim"], "the test could refute it"


# Broken on purpose


def quieter(kind, patch):
    less_noise(kind, patch, 0.1)


BROKEN = {"noise / 10": quieter, "reused noise": reused_noise, "no clipping": no_clip}


@pytest.mark.slow
@pytest.mark.parametrize("fault", BROKEN)
@pytest.mark.parametrize("kind", ["dp-sgd", "central", "dp-ftrl", "distributed", "output"])
def test_a_broken_mechanism_is_refuted(kind, fault, subjects, monkeypatch):
    subject = subjects(kind)
    BROKEN[fault](kind, monkeypatch)
    # The other examples hide reuse from a row, whose direction is not the auditor's choice.
    only = gradient_canary if (kind, fault) == ("dp-sgd", "reused noise") else None
    found, bounds = audited(subject, kind, fault, monkeypatch, only)
    assert found["verdict"] == "refuted"
    assert min(bounds.values()) > found["claim"], "every canary sees it"


@pytest.mark.parametrize("seed", range(5))
def test_a_site_shows_noise_that_is_used_again_whatever_the_seed(seed, subjects, monkeypatch):
    subject = subjects("central")
    reused_noise("central", monkeypatch)
    found = canary_audit(subject, trials=200, seed=seed, confidence=0.99)
    assert found["verdict"] == "refuted"
    assert found["lower_bound"] > found["claim"]


def test_the_two_crafted_examples_pull_in_different_directions(subjects):
    """Where they are exchanged for each other, one direction would show nothing at all."""
    subject = subjects("dp-sgd, replace-one")
    site = subject.site()
    data, questions = subject.host.data(site).train, subject.questions()
    for seed in range(4):
        size, pair, asked = _loud_rows(subject, data, questions, seed)
        one, two = (_gradient(subject, q, row)[1] for q, row in zip(asked, pair))
        assert size > 10
        assert abs(one @ two) < 0.01
