"""Tracking, with the real libraries: what is written, when it fails, after a kill, and by whom."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import cupola
from cupola.analysis import tracking
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import load
from cupola.analysis.simulated import Simulated
from cupola.errors import PlanError

PLAN = {
    "name": "tiny",
    "rounds": 3,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3}},
    "model": "linear",
    "privacy": {"mechanism": "dp-sgd", "clip": 1.0, "noise_multiplier": 1.0},
    "engine": {"workers": 1},
}


@pytest.fixture
def server():
    """Where everybody who asks is counted."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(500)

        do_POST = do_GET

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}", asked
        listening.shutdown()


def store(tmp_path, **more):
    return {**PLAN, "track": {"mlflow": (tmp_path / "mlruns").as_uri(), **more}}


def runs_in(tmp_path, project="tiny"):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    from mlflow import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    found = client.search_runs([client.get_experiment_by_name(project).experiment_id])
    return client, found


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """What the trackers set is not left to other tests."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_mlflow_has_what_the_history_holds(tmp_path):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    run = cupola.run(store(tmp_path, project="mine"), tmp_path / "run")
    client, [found] = runs_in(tmp_path, "mine")
    for name, value in (
        ("test/accuracy", lambda record: record["test"]["accuracy"]),
        ("bytes_up", lambda record: record["bytes_up"]),
    ):
        seen = client.get_metric_history(found.info.run_id, name)
        assert [(m.step, m.value) for m in seen] == [(r["round"], value(r)) for r in run.history]
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["privacy.mechanism"] == "dp-sgd"
    assert not any(key.startswith("track") for key in found.data.params)
    assert found.data.metrics["result/privacy/epsilon"] == run.result["privacy"]["epsilon"]
    assert found.data.metrics["result/bytes_down"] == run.result.bytes_down
    numbers = set().union(*(tracking.numbers_of(record) for record in run.history))
    assert {k for k in found.data.metrics if not k.startswith("result/")} == numbers
    assert set(found.data.tags) == {"mlflow.runName"}  # no user, no source, no commit
    files = {one.path for one in client.list_artifacts(found.info.run_id)}
    assert files == {"plan.toml", "history.jsonl", "result.json"}


def test_the_model_is_kept_if_asked_for_and_never_who_holds_what(tmp_path):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    cupola.run({**store(tmp_path, artifacts="results"), "rounds": 1}, tmp_path / "run")
    client, [found] = runs_in(tmp_path)
    files = {one.path for one in client.list_artifacts(found.info.run_id)}
    assert {"report.html", "model.safetensors"} <= files
    assert not files & {"partition.json", "ledger.jsonl", "privacy.jsonl", "privacy.id"}


def test_a_resume_goes_on_with_the_same_tracked_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    monkeypatch.setattr(tracking, "_PAUSE", 0.0)

    def stop(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    plan = {**store(tmp_path), "rounds": 4}
    with pytest.raises(KeyboardInterrupt):
        cupola.run(plan, tmp_path / "run", progress=stop)
    client, [found] = runs_in(tmp_path)
    assert found.info.status == "KILLED"
    [run] = cupola.resume(tmp_path / "run")
    client, [found] = runs_in(tmp_path)
    seen = client.get_metric_history(found.info.run_id, "bytes_up")
    assert [(m.step, m.value) for m in seen] == [(r["round"], r["bytes_up"]) for r in run.history]
    assert found.info.status == "FINISHED"


KILLED = """
import os, sys
import cupola
def die(progress):
    if progress.done == 3:
        os._exit(9)
cupola.run(sys.argv[1], sys.argv[2], progress=die)
"""


@pytest.mark.slow
def test_after_a_kill_no_round_is_missing_and_none_is_there_twice(tmp_path):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    path = tmp_path / "plan.toml"
    plan = {**store(tmp_path), "rounds": 5, "checkpoint_seconds": 0}
    path.write_text(load(plan).to_toml())
    dead = subprocess.run([sys.executable, "-c", KILLED, path, tmp_path / "run"], check=False)
    assert dead.returncode == 9
    [run] = cupola.resume(tmp_path / "run")
    client, [found] = runs_in(tmp_path)
    seen = client.get_metric_history(found.info.run_id, "test/accuracy")
    assert [m.step for m in seen] == [1, 2, 3, 4, 5]
    assert [m.value for m in seen] == [r["test"]["accuracy"] for r in run.history]


def test_a_server_that_is_away_is_named_once_and_the_run_goes_on(tmp_path, server, capfd):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"
    uri, asked = server
    run = cupola.run({**PLAN, "track": {"mlflow": uri}}, tmp_path / "run")
    assert run.status == "finished"
    assert asked  # it was tried
    assert capfd.readouterr().err.count("the run goes on without it") == 1
    plain = cupola.run(PLAN, tmp_path / "plain")
    assert plain.history[-1]["test"] == run.history[-1]["test"]


def test_what_a_failure_left_out_is_written_at_the_end(tmp_path, monkeypatch, capfd):
    pytest.importorskip("mlflow", reason="the extra 'track' is not installed")
    from cupola.analysis.trackers import TRACKERS, MLflow

    class Flaky(MLflow):
        failed = False

        def write(self, rounds):
            if not Flaky.failed:
                Flaky.failed = True
                raise ConnectionError("reset by peer")
            super().write(rounds)

    monkeypatch.setitem(TRACKERS, "mlflow", Flaky)
    cupola.run(store(tmp_path), tmp_path / "run")
    client, [found] = runs_in(tmp_path)
    seen = client.get_metric_history(found.info.run_id, "bytes_up")
    assert [m.step for m in seen] == [1, 2, 3]
    assert "ConnectionError: reset by peer" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("track", "said"),
    [
        ({}, "say where to"),
        ({"mlflow": "https://me:secret@there/x"}, "MLFLOW_TRACKING_PASSWORD"),
        ({"wandb": "always"}, "track.wandb"),
        ({"wandb": "offline", "folder": "x"}, "track.folder"),
    ],
)
def test_refused(track, said):
    with pytest.raises(PlanError, match=said):
        load({**PLAN, "track": track})


def test_a_missing_library_is_named_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda _: None)
    with pytest.raises(PlanError, match=r"cupola\[track\]"):
        cupola.run({**PLAN, "track": {"wandb": "offline"}}, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_parties_do_not_agree_on_a_tracker():
    plain, tracked = (
        load(plan) for plan in (PLAN, {**PLAN, "track": {"mlflow": "http://127.0.0.1:1"}})
    )
    assert analysis_of(plain).agreement() == analysis_of(tracked).agreement()
    assert "track" not in plain.to_toml()


class Elsewhere(Simulated):
    """Simulated sites of a plan that a server was handed: to `run` they are real."""

    real = True


def test_a_server_of_real_sites_writes_to_nobody(tmp_path, server):
    uri, asked = server
    plan = {**PLAN, "track": {"mlflow": uri, "wandb": "online"}}
    run = cupola.run(plan, tmp_path / "run", sites=Elsewhere())
    assert run.status == "finished"
    assert asked == []
    assert not (tmp_path / "run" / "track.json").exists()


@pytest.mark.slow
def test_wandb_offline_has_the_rounds_and_nothing_of_the_machine(tmp_path):
    wandb = pytest.importorskip("wandb", reason="the extra 'track' is not installed")
    os.environ["WANDB_DIR"] = str(tmp_path)

    def stop(progress):
        if progress.done == 2:
            raise KeyboardInterrupt

    plan = {**PLAN, "track": {"wandb": "offline"}}
    with pytest.raises(KeyboardInterrupt):
        cupola.run(plan, tmp_path / "run", progress=stop)
    [run] = cupola.resume(tmp_path / "run")
    wandb.teardown()  # its service has written all
    known = json.loads((tmp_path / "run" / "track.json").read_text())["wandb"]
    parts = sorted((tmp_path / "wandb").glob(f"offline-run-*-{known['run']}"))
    rows = [row for part in parts for row in rows_of(next(part.glob("*.wandb")))]
    assert [row["_step"] for row in rows] == [1, 2, 3]
    assert [row["test/accuracy"] for row in rows] == [r["test"]["accuracy"] for r in run.history]
    files = {path.name for path in parts[-1].glob("files/*")}
    assert files == {"plan.toml", "history.jsonl", "result.json"}  # no metadata, no requirements


def rows_of(path: Path):
    """The history in a file of W&B."""
    from wandb.proto import wandb_internal_pb2 as messages
    from wandb.sdk.internal.datastore import DataStore

    data = DataStore()
    data.open_for_scan(str(path))
    while (piece := data.scan_data()) is not None:
        record = messages.Record()
        record.ParseFromString(piece)
        if record.WhichOneof("record_type") == "history":
            yield {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
    data._fp.close()  # it has no way of its own
