"""The coordinator's side of a job: it drives a plan's own program, as a simulation does."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cupola.engines.flare.announce import say
from cupola.engines.flare.jobs import ASK, FOLDER, HELLO, PROGRESS, RESULTS, RUN, Job
from cupola.engines.flare.logging_lock import lock_logging
from cupola.engines.flare.transport import Transport

START = 300.0  # seconds that parties have to get ready


class CupolaController(Controller):
    """job: the fields of a `Job`."""

    def __init__(self, **job: Any) -> None:
        super().__init__(task_check_period=0.05)
        lock_logging()
        self.job = Job(**job)
        self._told: dict[str, Any] = {"state": "starting"}
        self._transport: Transport | None = None
        self._away: set[str] = set()

    def start_controller(self, fl_ctx: FLContext) -> None:
        engine = fl_ctx.get_engine()
        engine.register_app_command(PROGRESS, self._progress)

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        from cupola.errors import CupolaError
        from cupola.site.coordinator import carry_out, own_run, packed, run_folder

        transport = self._transport = Transport(self, fl_ctx, abort_signal)
        own = Path(os.environ[FOLDER])
        workspace = fl_ctx.get_engine().get_workspace()
        kept = Path(workspace.get_run_dir(fl_ctx.get_job_id())) / RUN
        say(self.job.study, "begins")
        try:
            third = [self.job.compensator] if self.job.compensator else []
            transport.ask(b"", [*self.job.sites, *third], START, HELLO)
            status = carry_out(self.job, partial(transport.ask, kind=ASK), own, self._watch)
            results = packed(run_folder(own, self.job), for_sites=True)
            transport.ask(results, self.job.sites, 60.0, RESULTS)
            self._told |= {"state": status}
        except CupolaError as error:
            self._told |= {"state": "failed", "reason": str(error)}
        except KeyboardInterrupt:
            self._told |= {"state": "stopped"}
        finally:
            reason = self._told.get("reason")
            say(self.job.study, f"{self._told['state']}{f': {reason}' if reason else ''}")
            kept.mkdir(parents=True, exist_ok=True)
            folder = own_run(own, self.job)
            if folder is not None:
                (kept / "run.zip").write_bytes(packed(folder))
            (kept / "end.json").write_text(json.dumps(self._told))

    def _watch(self, progress: dict[str, Any]) -> None:
        self._told |= {"state": "running", **progress}
        self._say_away()

    def _say_away(self) -> None:
        """Who gives no answer, once, and when it is back."""
        away = set(self._transport.away) if self._transport is not None else set()
        for name in sorted(away ^ self._away):
            say(self.job.study, f"no answer from {name}" if name in away else f"{name} is back")
        self._away = away

    def _progress(self, *_: Any, **__: Any) -> dict[str, Any]:
        """How far the run is, for those who follow it."""
        away = sorted(self._transport.away) if self._transport is not None else []
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
