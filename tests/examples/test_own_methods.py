"""Methods of a user's own, from files of at most 60 lines: run from a plan, checked, swept, killed
and resumed, masked or refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import cupola
from cupola.errors import PlanError
from cupola.sweep import define, sweep

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLAN = EXAMPLES / "own_method.toml"
OWN = ["own_feddyn:OwnFedDyn", "own_trimmed_mean:OwnTrimmedMean", "own_objective:FedLC"]
SHORT = ["rounds=2", "data.partition.samples_per_site=20"]


def weights(settings, folder):
    run = cupola.run(PLAN, folder, settings=[*SHORT, *settings], report=False)
    return run.model().state_dict()


@pytest.mark.parametrize("name", OWN)
def test_each_is_a_short_file(name):
    lines = (EXAMPLES / f"{name.split(':')[0]}.py").read_text().splitlines()
    assert len(lines) <= 60


@pytest.mark.parametrize(
    ("own", "ours"),
    [("own_feddyn:OwnFedDyn", "feddyn"), ("own_trimmed_mean:OwnTrimmedMean", "trimmed-mean")],
)
def test_own_and_ours_are_the_same(tmp_path, own, ours):
    a = weights([f"method.name={own}"], tmp_path / "own")
    b = weights([f"method.name={ours}"], tmp_path / "ours")
    assert all(torch.allclose(a[n], b[n], atol=1e-6) for n in a)


@pytest.mark.parametrize("name", OWN)
def test_check_names_it_and_what_it_sees(name):
    found = cupola.check(PLAN, settings=[*SHORT, f"method.name={name}"])
    assert found["method"] == name
    assert f"own-method: {name} (settings of fedavg), 2 rounds" in str(found)
    assert not found["utility"]["preserved"]


@pytest.mark.parametrize(
    ("name", "option", "values", "wrong"),
    [
        (OWN[0], "alpha", [0.1, 0.5], ("-1", "greater than 0")),
        (OWN[1], "trim", [0.2, 0.4], ("0.5", "less than 0.5")),
        (OWN[2], "temperature", [0.3, 3.0], ("0", "greater than 0")),
    ],
)
def test_options_are_keys_that_can_be_swept(tmp_path, name, option, values, wrong):
    own = [*SHORT, f"method.name={name}"]
    plan = cupola.load(PLAN, [*own, f"grid={{'method.{option}'={values}}}"])
    runs = cupola.run_all(plan, tmp_path / "runs", report=False)
    assert [run.plan.method.options[option] for run in runs] == values
    first, second = (run.model().state_dict() for run in runs)
    assert any(not torch.equal(first[n], second[n]) for n in first)
    given, said = wrong
    with pytest.raises(PlanError, match=rf"method\.{option}: .*{said}"):
        cupola.load(PLAN, [*own, f"grid={{'method.{option}'=[{values[0]},{given}]}}"])


def test_a_sweep_chooses_an_option_by_validation(tmp_path):
    """`cupola sweep ... --over method.temperature=0.3,3`, as the example's header has it."""
    own = [*SHORT, f"method.name={OWN[2]}"]
    found = sweep(define(PLAN, ["method.temperature=0.3,3"], settings=own), tmp_path / "sweep")
    assert {t["settings"]["method.temperature"] for t in found["trials"]} == {0.3, 3}
    assert found["best"]["score"] == max(t["score"] for t in found["trials"])
    assert cupola.load(tmp_path / "sweep" / "best.toml").method.name == OWN[2]


def test_masked_or_refused_with_the_reason(tmp_path):
    for name in (OWN[0], OWN[2]):
        own = f"method.name={name}"
        plain = weights([own], tmp_path / "plain" / name)
        masked = weights([own, "sum=masked"], tmp_path / "masked" / name)
        assert all(torch.allclose(plain[n], masked[n], atol=1e-4) for n in plain)
    with pytest.raises(PlanError, match="must see every site's own update"):
        weights(["sum=masked", "method.name=own_trimmed_mean:OwnTrimmedMean"], tmp_path / "no")


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_killed_and_resumed_as_if_not(tmp_path, name):
    settings = [f"method.name={name}", "rounds=40", "checkpoint_seconds=0"]
    whole = cupola.run(PLAN, tmp_path / "whole", settings=settings, report=False)
    folder = tmp_path / "killed"
    line = [sys.executable, "-m", "cupola", "run", str(PLAN), "-o", str(folder), "--quiet"]
    line += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(line, cwd=EXAMPLES, env=os.environ) as process:
        history = folder / "history.jsonl"
        while not (history.exists() and history.read_text().count("\n") >= 5):
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    [run] = cupola.resume(folder, report=False)
    assert run.status == "finished"
    a, b = whole.model().state_dict(), run.model().state_dict()
    assert all(torch.equal(a[n], b[n]) for n in a)
