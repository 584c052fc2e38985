"""The coordinator's side of a job: it drives a plan's own program, as a simulation does."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cupola.flare.carrier import Carrier
from cupola.flare.closed import close_doors
from cupola.flare.jobs import ASK, HELLO, PROGRESS, RESULTS, RUN, Job
from cupola.flare.launch import FOLDER

START = 300.0  # seconds that parties have to get ready


class CupolaController(Controller):
    """Takes the arguments of a Job (see there)."""

    def __init__(
        self,
        study: str,
        plan: str,
        sites: list[str],
        compensator: str | None = None,
        roster: str | None = None,
        minimum: int = 1,
    ) -> None:
        super().__init__(task_check_period=0.05)
        close_doors()
        self.job = Job(study, plan, sites, compensator, roster, minimum)
        self._told: dict[str, Any] = {"state": "starting"}
        self._carrier: Carrier | None = None

    def start_controller(self, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        engine.register_app_command(PROGRESS, self._progress)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        from cupola.errors import CupolaError
        from cupola.flare.coordinate import carry_out, own_run, packed, run_folder

        carrier = self._carrier = Carrier(self, fl_ctx, abort_signal)
        own = Path(os.environ[FOLDER])
        kept = _run_folder(fl_ctx) / RUN
        try:
            third = [self.job.compensator] if self.job.compensator else []
            carrier.ask(b"", [*self.job.sites, *third], START, HELLO)
            status = carry_out(self.job, partial(_ask, carrier), own, self._watch)
            results = packed(run_folder(own, self.job), for_sites=True)
            carrier.ask(results, self.job.sites, 60.0, RESULTS)
            self._told |= {"state": status}
        except CupolaError as error:
            self._told |= {"state": "failed", "reason": str(error)}
        except KeyboardInterrupt:
            self._told |= {"state": "stopped"}
        finally:
            kept.mkdir(parents=True, exist_ok=True)
            folder = own_run(own, self.job)
            if folder is not None:
                (kept / "run.zip").write_bytes(packed(folder))
            (kept / "end.json").write_text(json.dumps(self._told))

    def _watch(self, progress: dict[str, Any]) -> None:
        self._told |= {"state": "running", **progress}

    def _progress(self, *_: Any, **__: Any) -> dict[str, Any]:
        """How far the run is, for those who follow it."""
        away = sorted(self._carrier.away) if self._carrier is not None else []
        return {**self._told, "away": away}

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(
        self,
        client: Client,
        task_name: str,
        client_task_id: str,
        result: Shareable,
        fl_ctx: FLContext,
    ) -> None:
        """An answer that came too late; nobody waits for it."""


def _ask(
    carrier: Carrier, message: bytes, parties: Sequence[str], timeout: float
) -> Mapping[str, bytes | str]:
    return carrier.ask(message, parties, timeout, ASK)


def _run_folder(fl_ctx: FLContext) -> Path:
    workspace = fl_ctx.get_engine().get_workspace()
    return Path(workspace.get_run_dir(fl_ctx.get_job_id()))
