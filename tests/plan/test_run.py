"""Runs: what they leave, resume after any kind of end, edges of data and participation."""

from __future__ import annotations

import json
import os
import random
import runpy
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from samples import SMALL
from typer.testing import CliRunner

import cupola
from cupola.analysis import checkpoint as checkpoints
from cupola.analysis.checkpoint import Checkpoint
from cupola.analysis.folder_lock import locked, read_lines
from cupola.analysis.plan_file import load
from cupola.analysis.session import Progress
from cupola.base.chain import read_json
from cupola.cli import app
from cupola.errors import CupolaError, DataError, FederationError, PlanError

HERE = Path(__file__).parent


def history(folder: Path) -> list[dict[str, Any]]:
    """Without times."""
    records = cupola.Run.open(folder).history
    return [{k: v for k, v in record.items() if k != "seconds"} for record in records]


def same(one: Path, other: Path) -> None:
    """Model, history and ledger are equal, bit for bit."""
    assert history(one) == history(other)
    for name in ("model.safetensors", "ledger.jsonl", "plan.toml", "partition.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def go(folder: Path, *settings: str, plan: dict[str, Any] = SMALL, **options: Any) -> cupola.Run:
    return cupola.run(plan, folder, settings=settings, report=False, **options)


def checked(plan: dict[str, Any], folder: Path, *options: str) -> str:
    """What check says of a plan, on one line."""
    path = folder / "plan.toml"
    path.write_text(load(plan).to_toml())
    found = CliRunner().invoke(app, ["check", str(path), *options])
    assert found.exit_code == 0, found.output
    return " ".join(found.output.split())


def stop_after(round: int) -> Callable[[Progress], None]:
    """As if the process died there: no part of the run may catch it."""

    def watch(progress: Progress) -> None:
        if progress.round == round:
            raise SystemExit

    return watch


def test_a_run_leaves_all_that_one_may_want_to_know(tmp_path: Path) -> None:
    seen: list[Progress] = []
    run = cupola.run(SMALL, tmp_path / "r", progress=seen.append)
    result = run.result
    assert run.status == "finished"
    assert [p.round for p in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].seconds_left == 0
    assert seen[-1].rounds_per_second > 0
    assert result["final"] == run.history[-1]
    assert result["parameters"] == 650
    assert result["bytes_down"] == run.history[-1]["bytes_down"] > 0
    ledger = list(read_lines(tmp_path / "r/ledger.jsonl"))
    assert sum(e["bytes_up"] * len(e["sites"]) for e in ledger) == result["bytes_up"]
    assert load(tmp_path / "r/plan.toml") == load(SMALL)
    table = json.loads((tmp_path / "r/partition.json").read_text())
    assert [sum(c) for c in table["counts"]] == table["sizes"]
    assert (tmp_path / "r/report.html").exists()
    model = run.model()
    data = cupola.training.build.federated_data(run.plan).public["test"]  # type: ignore[attr-defined]
    right = (model(data.inputs()).argmax(1) == data.y).float().mean()
    assert float(right) == pytest.approx(run.history[-1]["test"]["accuracy"])
    assert cupola.Run.open(tmp_path / "r").result == result


def test_weights_of_other_names_are_no_model(tmp_path: Path) -> None:
    run = cupola.run(SMALL, tmp_path / "r", report=False)
    path = tmp_path / "r/model.safetensors"
    save_file({f"old.{name}": p for name, p in load_file(path).items()}, path)
    with pytest.raises(DataError, match=r"model\.safetensors is damaged"):
        run.model()
    earlier = {k: v for k, v in run.result.items() if k != "checksums"}
    (tmp_path / "r/result.json").write_text(json.dumps(earlier))  # as earlier versions wrote it
    with pytest.raises(CupolaError, match="does not fit the model"):
        run.model()


@pytest.mark.parametrize(
    "settings",
    [
        ["recipe=fedavg"],
        ["recipe=scaffold", "participation.kind=fraction", "participation.fraction=0.5"],
        ["recipe=fedcmb+wga", "server.momentum=0.9", "local.batch_size=8"],
        ["recipe=fedadam", "data.partition.test=0.2", "evaluation.on=both", "evaluation.every=2"],
        ["model=mlp", "model.dropout=0.5", "evaluation.best=true", "data.partition.validation=0.2"],
    ],
)
@pytest.mark.parametrize("every", ["0", "1000"])
def test_a_resumed_run_equals_an_unbroken_one(
    tmp_path: Path, settings: list[str], every: str
) -> None:
    settings = [*settings, f"checkpoint_seconds={every}", "rounds=13"]
    go(tmp_path / "whole", *settings)
    for round in (2, 5, 11):
        with pytest.raises(SystemExit):
            go(tmp_path / "broken", *settings, resume=True, progress=stop_after(round))
    go(tmp_path / "broken", *settings, resume=True)
    same(tmp_path / "whole", tmp_path / "broken")


def test_a_resume_in_the_middle_of_a_round(tmp_path: Path, monkeypatch: Any) -> None:
    """Saved between training and the evaluation at the sites."""
    settings = ["data.partition.test=0.2", "evaluation.on=both", "checkpoint_seconds=0"]
    go(tmp_path / "whole", *settings)
    saves = 0
    save = Checkpoint.save

    def dying(self: Checkpoint, folder: Path) -> None:
        nonlocal saves
        save(self, folder)
        saves += 1
        if saves == 5:
            raise SystemExit

    monkeypatch.setattr(Checkpoint, "save", dying)
    with pytest.raises(SystemExit):
        go(tmp_path / "broken", *settings)
    saved = Checkpoint.load(tmp_path / "broken/checkpoint")
    assert saved is not None
    assert saved.state.values["pending"]
    monkeypatch.undo()
    go(tmp_path / "broken", *settings, resume=True)
    same(tmp_path / "whole", tmp_path / "broken")


def test_torn_files_do_not_matter(tmp_path: Path) -> None:
    go(tmp_path / "whole", "checkpoint_seconds=0")
    broken = tmp_path / "broken"
    with pytest.raises(SystemExit):
        go(broken, "checkpoint_seconds=0", progress=stop_after(3))
    for name in ("history.jsonl", "ledger.jsonl"):
        with (broken / name).open("ab") as file:
            file.write(b'{"round": 4, "si')
    (broken / "checkpoint/state.safetensors.part").write_bytes(b"half a checkpoint")
    (broken / "plan.toml.part").write_bytes(b"na")
    assert [r["round"] for r in cupola.Run.open(broken).history] == [1, 2, 3]
    assert cupola.Run.open(broken).status == "unfinished"
    cupola.resume(broken, report=False)
    same(tmp_path / "whole", broken)


@pytest.mark.parametrize("point", ["write", "replace"])
def test_death_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: Any, point: str) -> None:
    go(tmp_path / "whole", "checkpoint_seconds=0")
    replace, calls = os.replace, 0

    def dying(part: Path, path: Path) -> None:
        nonlocal calls
        calls += Path(path).name == checkpoints.FILE
        if calls == 3 and Path(path).name == checkpoints.FILE:
            if point == "write":  # only half of it reached the disk
                Path(part).write_bytes(Path(part).read_bytes()[:100])
            else:
                replace(part, path)
            raise SystemExit
        replace(part, path)

    monkeypatch.setattr("os.replace", dying)
    with pytest.raises(SystemExit):
        go(tmp_path / "broken", "checkpoint_seconds=0")
    monkeypatch.undo()
    go(tmp_path / "broken", "checkpoint_seconds=0", resume=True)
    same(tmp_path / "whole", tmp_path / "broken")


def test_a_shortened_history_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        go(tmp_path / "r", "checkpoint_seconds=0", progress=stop_after(3))
    (tmp_path / "r/history.jsonl").write_text("")
    with pytest.raises(CupolaError, match="shorter than its checkpoint says"):
        go(tmp_path / "r", "checkpoint_seconds=0", resume=True)


def forked(plan: Path, folder: Path) -> Callable[[bool], int]:
    """Run in a fork of this process, which has all modules ready; returns how to end it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            torch.set_num_threads(1)
            cupola.run(plan, folder, resume=True, report=False)
        except BaseException:
            os._exit(1)
        os._exit(0)

    def end(kill: bool) -> int:
        if kill:
            os.kill(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1]

    return end


CHILD = "import torch; torch.set_num_threads(1); import sys, cupola; " + (
    "cupola.run(sys.argv[1], sys.argv[2], resume=True, report=False)"
)


def spawned(plan: Path, folder: Path) -> Callable[[bool], int]:
    """Run in a process of its own."""
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(plan), str(folder)], cwd=HERE, stderr=subprocess.DEVNULL
    )

    def end(kill: bool) -> int:
        if kill:
            child.kill()
        return child.wait()

    return end


def kill_often(tmp_path: Path, start: Any, settings: list[str], kills: int, seed: int) -> None:
    """Kill -9 a run at random moments after it has got further, then let it end."""
    chance = random.Random(seed)
    plan = tmp_path / "plan.toml"
    plan.write_text(load(SMALL, [*settings, "checkpoint_seconds=0.05"]).to_toml())
    assert start(plan, tmp_path / "whole")(False) == 0
    broken = tmp_path / "broken"
    log, saved = broken / "history.jsonl", broken / "checkpoint/state.safetensors"
    hit = 0
    for _ in range(kills):
        before = saved.stat().st_mtime_ns if saved.exists() else 0
        end = start(plan, broken)
        limit = time.monotonic() + 60
        while time.monotonic() < limit and not (broken / "result.json").exists():
            if log.exists() and saved.exists() and saved.stat().st_mtime_ns > before:
                break
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.1))
        end(True)
        hit += not (broken / "result.json").exists()
    assert hit  # at least one kill came before the end
    assert start(plan, broken)(False) == 0
    same(tmp_path / "whole", broken)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kill_nine(tmp_path: Path) -> None:
    kill_often(tmp_path, forked, ["rounds=300", "recipe=fedcmb"], 4, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "settings"),
    [
        (forked, ["rounds=800", "participation.kind=poisson", "participation.fraction=.4"]),
        (spawned, ["rounds=250", "recipe=scaffold"]),
        (
            forked,
            ["rounds=800", "recipe=fedcmb+wga", "data.partition.test=.2", "evaluation.on=both"],
        ),
    ],
)
def test_kill_nine_again_and_again(tmp_path: Path, start: Any, settings: list[str]) -> None:
    kill_often(tmp_path, start, settings, 4 if start is forked else 2, len(settings))


@pytest.mark.slow
def test_kill_nine_with_separate_sites(tmp_path: Path) -> None:
    settings = ["rounds=60", "recipe=fedcmb", "engine.kind=processes", "data.partition.sites=2"]
    kill_often(tmp_path, spawned, settings, 1, 0)


@pytest.mark.slow
def test_separate_sites_keep_their_state_through_a_resume(tmp_path: Path) -> None:
    settings = ["engine.kind=processes", "recipe=scaffold", "data.partition.sites=2", "rounds=3"]
    settings += ["checkpoint_seconds=0"]
    go(tmp_path / "whole", *settings)
    with pytest.raises(SystemExit):
        go(tmp_path / "broken", *settings, progress=stop_after(2))
    go(tmp_path / "broken", *settings, resume=True)
    same(tmp_path / "whole", tmp_path / "broken")


def test_the_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    with pytest.raises(SystemExit):
        go(folder, progress=stop_after(2))
    with pytest.raises(PlanError, match=r"not finished; resume it with `cupola resume .*r`"):
        go(folder)
    with pytest.raises(PlanError, match="holds a run of another plan"):
        go(folder, "local.lr=0.2")
    with pytest.raises(PlanError, match="holds a run of another plan"):
        go(folder, "local.lr=0.2", resume=True)
    go(folder, resume=True)
    with pytest.raises(PlanError, match="already holds this run, finished"):
        go(folder)
    before = history(folder)
    assert go(folder, resume=True).status == "finished"
    assert history(folder) == before
    go(folder, "local.lr=0.2", overwrite=True)
    assert history(folder) != before


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(PlanError, match="holds other files"):
        go(tmp_path)
    go(tmp_path, overwrite=True)
    go(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "mine"


def test_runs_without_a_folder_are_numbered(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(cupola.run(SMALL, report=False).folder) == "runs/small"
    assert str(cupola.run(SMALL, report=False).folder) == "runs/small-2"


def test_two_processes_cannot_share_a_folder(tmp_path: Path) -> None:
    with locked(tmp_path / "r"), pytest.raises(CupolaError, match=f"process {os.getpid()}"):
        go(tmp_path / "r")
    (tmp_path / "s").mkdir()
    (tmp_path / "s/.lock").write_text("99999")  # left by a process that died
    assert go(tmp_path / "s").status == "finished"


def test_many_runs_in_one_plan(tmp_path: Path) -> None:
    plan = {**SMALL, "rounds": 2, "seeds": [1, 2], "grid": {"recipe": ["fedavg", "fedprox"]}}
    with pytest.raises(PlanError, match="several runs"):
        cupola.run(plan, tmp_path / "r")

    def watch(progress: Progress) -> None:
        if progress.folder.name == "recipe=fedavg,seed=2":
            raise SystemExit

    with pytest.raises(SystemExit):
        cupola.run_all(plan, tmp_path / "r", progress=watch)
    runs = cupola.resume(tmp_path / "r")
    assert [run.plan.seed for run in runs] == [1, 2, 1, 2]
    assert all(run.status == "finished" for run in runs)
    listed = read_json(tmp_path / "r/runs.json")
    assert listed[3] == {
        "label": "recipe=fedprox,seed=2",
        "folder": "recipe=fedprox,seed=2",
        "settings": {"recipe": "fedprox", "seed": 2},
    }
    assert (tmp_path / "r/report.html").exists()
    with pytest.raises(CupolaError, match="several runs"):
        cupola.Run.open(tmp_path / "r")
    cupola.run_all(plan, tmp_path / "r", overwrite=True, report=False)


def test_ctrl_c_saves_and_tells_how_to_go_on(tmp_path: Path) -> None:
    go(tmp_path / "whole", "checkpoint_seconds=1000")

    def watch(progress: Progress) -> None:
        if progress.round == 3:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match=r"after round 4 of 6; resume with `cupola resume"):
        go(tmp_path / "r", "checkpoint_seconds=1000", progress=watch)
    assert cupola.Run.open(tmp_path / "r").result["status"] == "stopped"
    saved = Checkpoint.load(tmp_path / "r/checkpoint")
    assert saved is not None
    assert saved.state.values["round"] == 4
    cupola.resume(tmp_path / "r", report=False)
    same(tmp_path / "whole", tmp_path / "r")


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    go(tmp_path / "whole")

    def watch(progress: Progress) -> None:
        if progress.round == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="after round 3 of 6"):
        go(tmp_path / "r", progress=watch)
    cupola.resume(tmp_path / "r", report=False)
    same(tmp_path / "whole", tmp_path / "r")


def test_a_failed_run_says_why_and_keeps_its_last_good_step(tmp_path: Path) -> None:
    settings = ["local.lr=1e38", "local.weight_decay=0.1", "rounds=50"]
    with pytest.raises(FederationError) as error:
        go(tmp_path / "r", *settings)
    result = cupola.Run.open(tmp_path / "r").result
    assert (result["status"], result["reason"]) == ("failed", str(error.value))


def test_a_failure_leaves_the_ledger_of_the_last_good_step(
    tmp_path: Path, monkeypatch: Any
) -> None:
    from cupola.training import Training

    go(tmp_path / "whole")
    answer = Training.answer

    def failing(self: Any, state: Any, reply: Any) -> Any:
        if state.values["round"] == 3:
            raise FederationError("a bad moment")
        return answer(self, state, reply)

    monkeypatch.setattr(Training, "answer", failing)
    with pytest.raises(FederationError):
        go(tmp_path / "r")
    saved = Checkpoint.load(tmp_path / "r/checkpoint")
    assert saved is not None
    assert saved.state.values["round"] == 3
    monkeypatch.undo()
    go(tmp_path / "r", resume=True)
    same(tmp_path / "whole", tmp_path / "r")


def test_the_twin_of_a_utility_preserving_run(tmp_path: Path) -> None:
    run = go(tmp_path / "r", "recipe=fedfgd", "twin=true", "dtype=float64")
    assert run.result["twin"]["weight_difference"] < 1e-12
    twin = cupola.Run.open(tmp_path / "r/twin")
    assert len(twin.history) == 6
    for metric in ("loss", "accuracy"):
        ours, theirs = (one.history[-1]["test"][metric] for one in (run, twin))
        assert ours == pytest.approx(theirs, abs=1e-9)
    assert go(tmp_path / "s", "recipe=fedavg", "twin=true").result["twin"]["weight_difference"] > 0


def own(**options: Any) -> dict[str, Any]:
    return {**SMALL, "data": {"name": "samples:sites", **options}}


def test_own_data_model_and_loss(tmp_path: Path) -> None:
    plan = {
        **SMALL,
        "model": {"name": "samples:net", "width": 4},
        "loss": "samples:loss",
    }
    assert go(tmp_path / "a", plan=plan).result["model"] == "samples:net"
    plan = {**SMALL, "data": {"name": "samples:source", "n": 30, "partition": "iid"}}
    assert sum(json.loads((go(tmp_path / "b", plan=plan).folder / "partition.json").read_text())[
        "sizes"]) == 30  # fmt: skip
    with pytest.raises(DataError, match="gave a int"):
        go(tmp_path / "c", plan={**SMALL, "data": "samples:number"})
    assert cupola.Run.open(tmp_path / "c").result["status"] == "failed"


@pytest.mark.parametrize("mode", ["auto", "one-by-one"])
@pytest.mark.parametrize("recipe", ["fedavg", "fedsmb", "scaffold", "fedfgd"])
def test_empty_sites_and_a_site_with_one_sample(tmp_path: Path, mode: str, recipe: str) -> None:
    plan = own(sizes=[0, 1, 20, 0])
    settings = [f"engine.mode={mode}", f"recipe={recipe}", "local.batch_size=4"]
    run = go(tmp_path / "r", *settings, plan=plan)
    last = run.history[-1]
    assert run.status == "finished"
    assert last["sites"] in (1, 2)
    assert last["sites"] + sum(last["failed"].values()) == 4
    assert np.isfinite(last["test"]["loss"])


def test_only_empty_sites_leave_the_model_as_it_was(tmp_path: Path) -> None:
    run = go(tmp_path / "r", plan=own(sizes=[0, 0]))
    assert [record["sites"] for record in run.history] == [0] * 6
    weights = load_file(tmp_path / "r/model.safetensors")
    first = cupola.training.build.problem(run.plan).build().state_dict()  # type: ignore[attr-defined]
    assert all(torch.equal(torch.from_numpy(weights[n]), first[n]) for n in first)


def test_a_class_missing_at_a_site(tmp_path: Path) -> None:
    settings = ["data.partition.alpha=0.01", "evaluation.on=both", "evaluation.per_site=true"]
    run = go(tmp_path / "r", *settings, "data.partition.test=0.3", "evaluation.auroc=20")
    counts = np.array(json.loads((run.folder / "partition.json").read_text())["counts"])
    assert (counts == 0).any()
    assert len(run.history[-1]["per_site"]) == 4


@pytest.mark.parametrize("mode", ["auto", "one-by-one"])
def test_nan_data_names_the_site_and_the_row(tmp_path: Path, mode: str) -> None:
    with pytest.raises(CupolaError, match=r"site 1 \(site 1\): train inputs hold NaN .* row 1"):
        go(tmp_path / "r", f"engine.mode={mode}", plan=own(sizes=[5, 5], nan_at=1))


def test_more_sites_than_samples(tmp_path: Path) -> None:
    plan = {
        **SMALL,
        "data": {"name": "samples:source", "n": 7, "partition": {"kind": "iid", "sites": 12}},
    }
    run = go(tmp_path / "r", plan=plan)
    assert run.history[-1]["sites"] == 7


def test_rounds_without_participants(tmp_path: Path) -> None:
    settings = ["participation.kind=poisson", "participation.fraction=0.05", "rounds=12"]
    run = go(tmp_path / "r", *settings)
    asked = [record["sites"] for record in run.history]
    assert 0 in asked
    assert run.status == "finished"
    assert "test" in run.history[asked.index(0)]


def test_predicted_bytes_are_those_sent(tmp_path: Path) -> None:
    from cupola.training.forecast import foresee

    judged = ["data.partition.test=0.2", "evaluation.on=both", "evaluation.every=4"]
    for recipe, settings in {"scaffold": [], "fednova": judged}.items():
        run = go(tmp_path / recipe, f"recipe={recipe}", *settings)
        cost = foresee(run.plan)
        assert (cost.down, cost.up) == (run.result["bytes_down"], run.result["bytes_up"])


@pytest.mark.parametrize(
    ("name", "says"), [("quickstart", "by hand: "), ("fedavg_by_hand", "the same bits")]
)
def test_examples(name: str, says: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    path = HERE.parents[1] / "examples" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [path.name, str(tmp_path)])
    runpy.run_path(str(path), run_name="__main__")
    assert says in capsys.readouterr().out
