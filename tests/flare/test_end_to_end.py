"""The same plans as in simulation, at three real sites with a compensator."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime

import numpy as np
import pytest
from hospitals import CLOCKS, LEAD, SITES, plan
from safetensors.numpy import load_file

import cupola
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import contents
from cupola.engines.flare.submit import submit
from cupola.site import read_ledger
from cupola.site.consent import spent_file
from cupola.site.coordinator import unpack

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def run_real(trial, name, tmp_path, tell=None):
    end, packed = submit(trial.jobs[name], trial.folders[LEAD], tell, patience=120)
    assert end["state"] == "finished", end
    unpack(packed, tmp_path / "real", contents(load(plan(name))))
    return tmp_path / "real"


def run_simulated(name, tmp_path):
    return cupola.run(plan(name), tmp_path / "simulated", report=False).folder


def difference(one, other, file="model.safetensors"):
    first, second = load_file(one / file), load_file(other / file)
    assert first.keys() == second.keys()
    return max(float(np.abs(first[k] - second[k]).max()) for k in first)


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_plain_training_gives_the_model_of_a_simulation(trial, tmp_path):
    real, simulated = run_real(trial, "plain", tmp_path), run_simulated("plain", tmp_path)
    assert difference(real, simulated) < 1e-12
    ours, theirs = history(real), history(simulated)
    for key in ("bytes_down", "bytes_up"):
        assert [r[key] for r in ours] == [r[key] for r in theirs]
    assert json.loads((real / "result.json").read_text())["simulated"] is False
    for site in SITES:  # everybody has the results
        own = trial.folders[site] / "results" / "plain"
        assert difference(own, simulated) < 1e-12


def test_masked_sums_and_personalisation_give_what_a_simulation_gives(trial, tmp_path):
    real, simulated = run_real(trial, "hidden", tmp_path), run_simulated("hidden", tmp_path)
    assert difference(real, simulated) < 1e-6  # fixed point, rounded alike
    ours, theirs = (json.loads((f / "personal.json").read_text()) for f in (real, simulated))
    for method, facts in theirs["methods"].items():
        assert ours["methods"][method]["test"] == pytest.approx(facts["test"], abs=1e-6)
    assert difference(real, simulated, "personal.safetensors") < 1e-6
    ledger = [json.loads(line) for line in (real / "ledger.jsonl").read_text().splitlines()]
    trained = [e for e in ledger if e["task"] == "train"]
    assert trained
    assert all("masked" in e["protection"] for e in trained)
    for key in ("bytes_down", "bytes_up"):  # of all sites and the compensator, in all rounds
        ends = [json.loads((f / "result.json").read_text())[key] for f in (real, simulated)]
        assert abs(ends[0] - ends[1]) <= 200 * len(SITES)
    for party in ("hospital-a", *CLOCKS):  # all this with clocks that are hours apart
        told = read_ledger(trial.folders[party], "hidden")[-1]["time"]
        written = datetime.strptime(told, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp()
        assert abs(written - time.time() - CLOCKS.get(party, 0)) < 1800


def test_a_private_run_has_the_noise_it_states_and_nobody_can_repeat_it(trial, tmp_path):
    real, simulated = run_real(trial, "private", tmp_path), run_simulated("private", tmp_path)
    start = {k: v.numpy() for k, v in _start("private").items()}
    ours, theirs = (
        np.concatenate([(load_file(f / "model.safetensors")[k] - start[k]).ravel() for k in start])
        for f in (real, simulated)
    )
    # 650 numbers that are noise all but entirely: deviations differ by 2.8 % (one sigma) each.
    assert np.std(ours) == pytest.approx(np.std(theirs), rel=0.15)
    assert abs(np.corrcoef(ours, theirs)[0, 1]) < 0.2
    spent = [spent_file(trial.folders[site], "digits") for site in SITES]
    assert all(path.stat().st_size > 0 for path in spent)


def _start(name):
    from cupola.training import build

    host = build.host(plan(name))
    return host.problem.build().state_dict()
