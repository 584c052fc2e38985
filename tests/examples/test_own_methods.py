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


def test_options_are_keys_that_can_be_swept(tmp_path):
    plan = cupola.load(PLAN, [*SHORT, "grid={'method.alpha'=[0.1,0.5]}"])
    runs = cupola.run_all(plan, tmp_path / "runs", report=False)
    assert [run.plan.method.alpha for run in runs] == [0.1, 0.5]
    first, second = (run.model().state_dict() for run in runs)
    assert any(not torch.equal(first[n], second[n]) for n in first)
    with pytest.raises(PlanError, match=r"method\.alpha: .*greater than 0"):
        cupola.load(PLAN, ["grid={'method.alpha'=[0.1,-1]}"])


def test_masked_or_refused_with_the_reason(tmp_path):
    plain = weights([], tmp_path / "plain")
    masked = weights(["sum=masked"], tmp_path / "masked")
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
