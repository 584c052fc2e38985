"""The coordinator's side of a job: it drives a plan's own program, as a simulation does."""

from __future__ import annotations

from nvflare.apis.client import Client
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cupola.flare.carrier import Carrier
from cupola.flare.jobs import ASK, Job


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
        overwrite: bool = False,
    ) -> None:
        super().__init__(task_check_period=0.05)
        self.job = Job(study, plan, sites, compensator, roster, minimum, overwrite)

    def start_controller(self, fl_ctx: FLContext) -> None: ...

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        import time
        c = Carrier(self, fl_ctx, abort_signal)
        for i in range(40):
            t = time.monotonic()
            a = c.ask(b"x" * 1000, self.job.sites, 20.0, ASK)
            print("ROUND", i, time.monotonic() - t, {k: (v if isinstance(v, str) else len(v)) for k, v in a.items()}, flush=True)

    def stop_controller(self, fl_ctx: FLContext) -> None: ...

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that came too late; nobody waits for it."""
