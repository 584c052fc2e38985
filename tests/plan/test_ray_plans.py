"""Plans over Ray end where they end in one process, whatever they are made of."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback_ray import Loopback
from safetensors.numpy import load_file
from samples import SMALL
from test_run import HERE, go, history, same, stop_after

from cupola.analysis.folder_lock import read_lines
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import Run
from cupola.engines import ray_cluster
from cupola.errors import PlanError

RAY = ["engine.kind=ray", "rounds=3"]
PERSONAL = {
    **SMALL,
    "model": {"name": "mlp", "hidden": [8]},
    "data": {
        "name": "digits",
        "partition": {
            "kind": "types",
            "types": [[0, 1], [2, 3]],
            "sites_per_type": 2,
            "samples_per_site": 20,
            "test_per_site": 10,
            "validation": 0.2,
        },
    },
    "personalise": {"methods": ["pfa", "finetune"], "rounds": 1, "groups": 2, "minimum": 2},
}


@pytest.fixture
def loopback(monkeypatch: Any) -> Loopback:
    made = Loopback()
    monkeypatch.setattr(ray_cluster, "library", lambda: made)
    return made


def alike(one: Path, other: Path, within: float) -> None:
    """Models to a precision (0: bit for bit); who answered, what was sent and spent, exactly."""
    mine, theirs = (load_file(folder / "model.safetensors") for folder in (one, other))
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=within, err_msg=name)
    exact = ("round", "sites", "samples", "failed", "bytes_up", "bytes_down")
    pairs = zip(history(one), history(other), strict=True)
    for mine, theirs in pairs:
        assert {k: mine.get(k) for k in exact} == {k: theirs.get(k) for k in exact}
    books = [folder / "privacy.jsonl" for folder in (one, other)]
    assert books[0].exists() == books[1].exists()
    if books[0].exists():
        assert Run.open(one).result["privacy"] == Run.open(other).result["privacy"]


@pytest.mark.parametrize(
    ("recipe", "mode"),
    [
        ("fedavg", "auto"),
        ("fedavg", "one-by-one"),
        ("scaffold", "auto"),
        ("fedcmb+wga", "auto"),
        ("dp-sgd", "auto"),
        ("dp-sgd", "one-by-one"),
    ],
)
def test_one_worker_is_bit_for_bit_and_two_are_to_rounding(
    tmp_path: Path, loopback: Loopback, recipe: str, mode: str
) -> None:
    settings = [f"recipe={recipe}", f"engine.mode={mode}", "rounds=2"]
    settings += ["privacy.noise_multiplier=0.5"] if recipe == "dp-sgd" else []
    go(tmp_path / "here", *settings)
    for workers, within in ((1, 0.0), (2, 1e-6)):
        go(tmp_path / f"{workers}", *settings, "engine.kind=ray", f"engine.workers={workers}")
        alike(tmp_path / "here", tmp_path / f"{workers}", within)
    assert "add" in loopback.calls


@pytest.mark.parametrize(
    "settings",
    [
        ["participation.kind=poisson", "participation.fraction=0.5", "participation.dropouts=0.2"],
        ["recipe=dp-fedavg", "privacy.noise_multiplier=0.5"],
        ["data.partition.test=0.3", "evaluation.on=both", "evaluation.per_site=true"],
        ["model.name=mlp", "model.hidden=[8]", "recipe=fedprox"],
        ["sum=masked"],
        ["sum=masked", "sum.protocol=pairwise"],
        ["sum=masked", "recipe=scaffold"],
    ],
)
def test_other_choices(tmp_path: Path, loopback: Loopback, settings: list[str]) -> None:
    settings = ["rounds=2", *settings]
    go(tmp_path / "here", *settings)
    go(tmp_path / "ray", *settings, "engine.kind=ray", "engine.workers=2")
    alike(tmp_path / "here", tmp_path / "ray", 0.0 if "sum=masked" in settings else 1e-6)
    assert loopback.started == 2


def test_personalisation(tmp_path: Path, loopback: Loopback) -> None:
    runs = [
        go(tmp_path / name, *settings, "engine.workers=1", plan=PERSONAL)
        for name, settings in (("here", []), ("ray", RAY[:1]))
    ]
    assert runs[0].result["personal"] == runs[1].result["personal"]
    assert loopback.calls


def test_a_budget_holds(tmp_path: Path, loopback: Loopback) -> None:
    settings = ["recipe=dp-sgd", "privacy.noise_multiplier=1.5", "privacy.budget.epsilon=0.8"]
    settings += ["evaluation.on=public", "rounds=20"]
    runs = [go(tmp_path / "here", *settings), go(tmp_path / "ray", *settings, RAY[0])]
    alike(tmp_path / "here", tmp_path / "ray", 0.0)
    ledgers = [list(read_lines(run.folder / "ledger.jsonl")) for run in runs]
    assert [e["failed"] for e in ledgers[0]] == [e["failed"] for e in ledgers[1]]
    assert any("budget" in code for e in ledgers[1] for code in e["failed"].values())
    assert loopback.calls


@pytest.mark.parametrize("recipe", ["scaffold", "fedcmb"])
def test_a_resumed_run_equals_an_unbroken_one(
    tmp_path: Path, loopback: Loopback, recipe: str
) -> None:
    settings = [*RAY, f"recipe={recipe}", "engine.workers=2", "checkpoint_seconds=0"]
    go(tmp_path / "whole", *settings)
    with pytest.raises(SystemExit):
        go(tmp_path / "broken", *settings, progress=stop_after(2))
    loopback.deaths = (len(loopback.calls) + 4,)  # and then a worker dies
    go(tmp_path / "broken", *settings, resume=True)
    same(tmp_path / "whole", tmp_path / "broken")


def test_a_form_that_cannot_be_had_is_refused_as_ever(tmp_path: Path, loopback: Loopback) -> None:
    said = []
    for settings in ([], RAY[:1]):
        with pytest.raises(PlanError, match="cannot be computed together in this form") as error:
            go(tmp_path / f"{len(said)}", *settings, "recipe=scaffold", "engine.mode=together")
        said.append((type(error.value), str(error.value)))
    assert said[0] == said[1]
    assert not loopback.calls  # nobody was asked


def test_an_address_is_for_ray() -> None:
    with pytest.raises(PlanError, match=r"engine.kind = 'ray'"):
        load(SMALL, ["engine.address='ray://here:10001'"])
    assert load(SMALL, [*RAY, "engine.address=auto"]).engine.address == "auto"


@pytest.mark.slow
def test_on_real_processes(tmp_path: Path, cluster: None) -> None:  # noqa: ARG001
    settings = ["recipe=scaffold", "rounds=3", "data.partition.test=0.2", "evaluation.on=both"]
    go(tmp_path / "here", *settings)
    go(tmp_path / "ray", *settings, "engine.kind=ray", "engine.workers=2")
    alike(tmp_path / "here", tmp_path / "ray", 1e-6)


@pytest.mark.slow
def test_nothing_is_left_behind(tmp_path: Path) -> None:
    """A run that starts its own cluster, stopped by Ctrl-C: saved, and no process or file stays."""
    plan, folder = tmp_path / "plan.toml", tmp_path / "run"
    plan.write_text(load(SMALL, ["engine.kind=ray", "rounds=100000"]).to_toml())
    child = subprocess.Popen(
        [sys.executable, "-m", "cupola", "run", str(plan), "--out", str(folder)],
        cwd=HERE,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        limit = time.monotonic() + 300
        while not _size(folder / "history.jsonl") and time.monotonic() < limit:
            assert child.poll() is None
            time.sleep(0.1)
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does: to everybody in the group
        assert child.wait(60) == 130
    finally:
        child.kill()
    assert Run.open(folder).status == "stopped"
    limit = time.monotonic() + 60  # workers see that their cluster is gone
    while _in_session(child.pid) and time.monotonic() < limit:
        time.sleep(0.1)
    assert not _in_session(child.pid)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _in_session(leader: int) -> list[str]:
    """Processes that a command started, wherever they are by now."""
    shown = subprocess.run(["ps", "-eo", "sid=,stat=,args="], capture_output=True, text=True)
    rows = [line.split(None, 2) for line in shown.stdout.splitlines()]
    return [row[2] for row in rows if row[0] == str(leader) and not row[1].startswith("Z")]
