"""Every part of a mechanism is tested: broken ones are refuted, sound ones are not.

`pytest tests/audit/test_parts.py -s -n 0 -m ""` prints the table of docs/audit.md.
"""

import json

import numpy as np
import pytest
from audit_data import BASE, PLANS, SAMPLED, plan
from faults import (
    FAULTS,
    PAIRS,
    less_noise,
    longer_clip,
    real_noise_that_repeats,
    same_noise_at_all_sites,
    same_noise_in_all_steps,
)
from scipy.stats import chi2
from typer.testing import CliRunner

import cupola
from cupola.audit import Subject, audit, bounds, judging, membership, stepwise
from cupola.audit.parts import FALSE_ALARM, parts_audit
from cupola.cli import app
from cupola.training.batched import private_linear

MINUTES = 3 * 60


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    made = {}

    def get(kind, **more):
        name = kind + json.dumps(more, sort_keys=True)
        if name not in made:
            made[name] = tmp_path_factory.mktemp("audited") / "run"
            cupola.run({**plan(kind), **more}, made[name], report=False)
        return made[name]

    return get


@pytest.fixture
def found(folders, monkeypatch):
    """The parts of a run, tested while a fault is in its code."""

    def get(kind, fault=None, *more):
        subject = Subject.open(folders(kind), 6)
        monkeypatch.setattr(stepwise, "CASES", 26)  # the whole search is tested below
        if fault is not None:
            fault(kind, monkeypatch, *more)
        return parts_audit(subject, seed=1)

    return get


@pytest.mark.parametrize("kind", PLANS | SAMPLED)
def test_a_sound_mechanism_passes_every_part_and_each_has_power(kind, found):
    tested = found(kind)
    assert tested["refuted"] == [], tested["said"]
    assert tested["false_alarm"] <= FALSE_ALARM * (1 + 1e-12)
    assert tested["least_power"] > 0.999


@pytest.mark.parametrize(("kind", "fault"), PAIRS)
def test_a_fault_is_refuted(kind, fault, found):
    tested = found(kind, FAULTS[fault])
    assert tested["verdict"] == "refuted"
    print(f"\n| {kind} | {fault} | {tested['said'][0]} | {tested['seconds']:.1f} s |")
    assert tested["seconds"] < MINUTES / 3


PART = {
    "noise / 2": "noise variance",
    "clip x 2": "clip",
    "rate x 2": "inclusion rate",
    "reused noise": "freshness of noise",
    "division by the drawn": "division of the sum",
    "no clipping": "clip",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_part_that_is_broken_is_named(fault, found):
    assert PART[fault] in found("dp-sgd, sampled", FAULTS[fault])["refuted"]


@pytest.mark.parametrize(
    ("kind", "fault", "part"),
    [
        ("dp-sgd, mlp", same_noise_in_all_steps, "freshness within a round"),
        ("dp-sgd, mlp", same_noise_at_all_sites, "freshness of noise"),
        ("distributed", same_noise_at_all_sites, "freshness of noise"),
        ("output", same_noise_at_all_sites, "freshness of noise"),
        ("dp-sgd, mlp", real_noise_that_repeats, "freshness of noise, real site"),
        ("central", real_noise_that_repeats, "freshness of noise, real coordinator"),
        ("distributed", real_noise_that_repeats, "freshness of noise, real site"),
        ("objective", real_noise_that_repeats, "freshness of noise, real site"),
    ],
)
def test_noise_is_fresh_in_every_step_at_every_site_and_after_every_start(kind, fault, part, found):
    assert part in found(kind, fault)["refuted"]


@pytest.mark.parametrize("kind", ["dp-sgd, mlp", "central", "dp-ftrl", "distributed"])
def test_small_faults_are_seen_too(kind, found):
    """A tenth less noise."""
    assert "noise variance" in found(kind, less_noise, 0.9)["refuted"]


@pytest.mark.parametrize("kind", ["dp-sgd, mlp", "central", "dp-ftrl", "distributed"])
def test_a_slightly_longer_clip_is_seen(kind, found):
    assert "clip" in found(kind, longer_clip, 1.01)["refuted"]


def test_a_fault_in_the_form_for_many_sites_alone_is_seen(found, monkeypatch):
    honest = private_linear.noise_scale
    monkeypatch.setattr(private_linear, "noise_scale", lambda *given: honest(*given) / 2)
    assert found("dp-sgd, sampled")["refuted"] == ["sites together"]


# Clips


SEEING = {
    "model": "linear",
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 10}},
    "local": {"work": "batches", "batches": 1, "batch_size": 16, "lr": 0.1},
    "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0},
}
COPIES = {"privacy": {**SEEING["privacy"], "augmentations": ["original", {"flip": 1}]}}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({}, id="linear"),
        pytest.param(
            {"model": {"name": "mlp", "hidden": [16, 16]}}, id="mlp", marks=pytest.mark.slow
        ),
        pytest.param({"model": "small_cnn"}, id="small cnn", marks=pytest.mark.slow),
        pytest.param({"model": "audit_models:lstm"}, id="lstm", marks=pytest.mark.slow),
        pytest.param(COPIES, id="copies of examples", marks=pytest.mark.slow),
        pytest.param(
            {"model": "audit_models:over_positions"}, id="positions", marks=pytest.mark.slow
        ),
        pytest.param({"model": "audit_models:pointwise"}, id="pointwise", marks=pytest.mark.slow),
    ],
)
def test_the_clip_holds_for_crafted_inputs_and_weights(more, tmp_path):
    cupola.run({**BASE, "name": "seeing", **SEEING, **more}, tmp_path / "run", report=False)
    assert parts_audit(Subject.open(tmp_path / "run", 1), seed=1)["said"] == []


# Judging


def test_levels_add_up_to_the_false_alarm_rate():
    z = np.random.default_rng(1).standard_normal((4, 100))
    tests = [judging.variance_test(z, "noise", ""), judging.freshness_test(z, "abcd"),
             judging.bound_test(1.0, 2.0, "clip", "", "", "")]  # fmt: skip
    judged, rate = judging.judged(tests, 1e-3)
    assert sum(test.get("level", 0) for test in judged) == pytest.approx(rate) == 1e-3
    assert judged[2]["verdict"] == "consistent"
    beyond = judging.bound_test(float("nan"), 2.0, "clip", "", "", "")
    assert beyond.judged(1)["verdict"] == "refuted"


@pytest.mark.parametrize(
    "made",
    [
        lambda r: judging.variance_test(r.standard_normal(50), "", ""),
        lambda r: judging.blocks_test(r.standard_normal((3, 20)), [("a", slice(5))] * 2, ""),
        lambda r: judging.distribution_test(r.standard_normal((5, 40)), ""),
        lambda r: judging.freshness_test(r.standard_normal((5, 12)), "abcde"),
        lambda r: judging.independence_test(r.standard_normal(60), 2, ""),
        lambda r: judging.scale_test(r.standard_normal((6, 30)), [10] * 6, 10),
        lambda r: judging.gamma_test(r.gamma(4, size=10).sum(), 40, ""),
        lambda r: judging.rate_test(r.binomial(500, 0.1), 500, 0.1, "", ""),
        lambda r: judging.each_rate_test(r.binomial(40, 0.1, size=30), 40, 0.1),
        lambda r: judging.overlap_test(r.binomial(4000, 0.01), 4000, 0.1, ""),
        lambda r: judging.sizes_test(r.binomial(30, 0.2, size=50), 30, 0.2, r),
        lambda r: judging.count_test(r.binomial(100, 0.5), 100, 0.5, 0.82, ""),
    ],
)  # fmt: skip
def test_false_alarms_are_no_more_frequent_than_their_level(made):
    random, level, many = np.random.default_rng(3), 0.05, 2000
    alarms = sum(made(random).p <= level for _ in range(many))
    assert alarms <= many * level + 4 * (many * level) ** 0.5


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_the_computed_power_is_the_one_that_is_met(scale):
    """Six numbers, so that power is far from certain: half of the noise is seen in so many of
    draws; at full noise in as many as the level."""
    random, level = np.random.default_rng(5), 0.05
    tests = [judging.variance_test(scale * random.standard_normal(6), "", "") for _ in range(4000)]
    met = np.mean([test.p <= level for test in tests])
    assert met == pytest.approx(tests[0].power_at(level) if scale == 0.5 else level, abs=0.03)
    assert tests[0].power_at(level) == pytest.approx(float(chi2.cdf(4 * chi2.ppf(0.05, 6), 6)))


# The whole command


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["noise / 2", "clip x 2"])
def test_the_whole_audit_refutes(fault, folders, monkeypatch):
    """With little patience; benchmarks/audit/power.py has all faults and mechanisms with all."""
    kind = "dp-sgd, sampled"
    folder = folders(kind)
    monkeypatch.setattr(bounds, "PATIENCE", 3.0)
    monkeypatch.setattr(membership, "PATIENCE", 3.0)
    FAULTS[fault](kind, monkeypatch)
    result = CliRunner().invoke(app, ["audit", str(folder), "--workers", "1", "--json"])
    assert result.exit_code == 1, result.output
    whole = json.loads(result.stdout)
    assert whole["verdict"] == "refuted"
    assert whole["false_alarm"] <= 1e-3


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_a_sound_run_is_not_refuted(seed, tmp_path):
    kinds = [*PLANS, *SAMPLED]
    kind = kinds[seed % len(kinds)]
    cupola.run({**plan(kind), "seed": seed}, tmp_path / "run", report=False)
    whole = audit(tmp_path / "run", trials=100, shadows=0, seed=seed)
    assert whole["parts"]["refuted"] == [], whole["parts"]["said"]
    assert whole["epsilon"]["verdict"] == "consistent"
    assert whole["false_alarm"] <= 1e-3
