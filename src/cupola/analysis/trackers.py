"""MLflow and Weights & Biases, each as a `Tracker`: what can be written to one tracked run.

Imported when a plan names them. Neither may send more than it is given: their telemetry, and what
they find out about machine, code and packages, is switched off.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cupola.analysis.header import Track

Numbers = Mapping[str, float]
_LONGEST = 500  # characters of a parameter that every MLflow server takes
_AT_ONCE = 100  # parameters, or numbers, in a message to MLflow


class Tracker(Protocol):
    """One tracked run, begun or taken up again. id: by which it is found."""

    id: str

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None: ...

    def end(self, status: str, result: Numbers, files: Sequence[Path]) -> None: ...


class MLflow:
    """A run of MLflow (mlflow-skinny is enough), through its client: nothing global is touched."""

    def __init__(
        self, track: Track, project: str, name: str, params: Mapping[str, Any], known: str | None
    ) -> None:
        assert track.mlflow is not None
        uri, quiet = track.mlflow, os.environ.setdefault
        quiet("MLFLOW_DISABLE_TELEMETRY", "true")
        quiet("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # a run does not wait for minutes
        quiet("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        if uri.startswith("file:") or "://" not in uri:
            quiet("MLFLOW_ALLOW_FILE_STORE", "true")  # the user names one
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self._metric, self._client = Metric, MlflowClient(tracking_uri=uri)
        if known is not None:
            self.id = known
            self._client.update_run(known, status="RUNNING")
            return
        found = self._client.get_experiment_by_name(project)
        place = self._client.create_experiment(project) if found is None else found.experiment_id
        self.id = self._client.create_run(place, run_name=name).info.run_id
        given = [Param(_key(key), str(value)[:_LONGEST]) for key, value in params.items()]
        for start in range(0, len(given), _AT_ONCE):
            self._client.log_batch(self.id, params=given[start : start + _AT_ONCE])

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        now = int(1000 * time.time())
        found = [
            self._metric(_key(key), value, now, step)
            for step, numbers in rounds
            for key, value in numbers.items()
        ]
        for start in range(0, len(found), _AT_ONCE):
            self._client.log_batch(self.id, metrics=found[start : start + _AT_ONCE])

    def end(self, status: str, result: Numbers, files: Sequence[Path]) -> None:
        self.write([(0, {f"result/{key}": value for key, value in result.items()})])
        for file in files:
            self._client.log_artifact(self.id, str(file))
        words = {"finished": "FINISHED", "failed": "FAILED"}
        self._client.set_terminated(self.id, words.get(status, "KILLED"))


class WandB:
    """A run of Weights & Biases; offline it leaves files in ./wandb (or WANDB_DIR)."""

    def __init__(
        self, track: Track, project: str, name: str, params: Mapping[str, Any], known: str | None
    ) -> None:
        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        if track.wandb == "online" and not wandb.api.api_key:  # it would ask, and wait
            raise RuntimeError("nobody is logged in: `wandb login`, or set WANDB_API_KEY")
        waits: dict[str, Any] = {"init_timeout": 20, "finish_timeout": 20}
        settings = wandb.Settings(
            silent=True, console="off", save_code=False, disable_code=True, disable_git=True,
            disable_job_creation=True, x_disable_meta=True, x_disable_stats=True,
            x_disable_machine_info=True, x_save_requirements=False,
            **(waits if track.wandb == "online" else {}),
        )  # fmt: skip
        self.id = known or secrets.token_hex(4)
        self._run = wandb.init(
            project=project, name=name, id=self.id, config=dict(params), settings=settings,
            mode=track.wandb, resume="allow" if track.wandb == "online" else None,
            reinit="create_new",
        )  # fmt: skip

    def write(self, rounds: Sequence[tuple[int, Numbers]]) -> None:
        for step, numbers in rounds:
            self._run.log(dict(numbers), step=step)

    def end(self, status: str, result: Numbers, files: Sequence[Path]) -> None:
        self._run.summary.update({f"result/{key}": value for key, value in result.items()})
        self._run.summary["status"] = status
        for file in files:  # copied: the run folder may move before it is synced
            copy = shutil.copy(file, Path(self._run.dir) / file.name)
            self._run.save(copy, base_path=self._run.dir, policy="now")
        self._run.finish(exit_code=int(status == "failed"))


TRACKERS = {"mlflow": MLflow, "wandb": WandB}


def _key(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. /]", "_", name)[:250]
