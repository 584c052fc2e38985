"""The one class that sites and the compensator let FLARE run.

A job gives it the name of a study and bytes. Whatever is computed from them runs in a child
process, which a question may crash: the job lives on, and the next question gets a new child.
"""

from __future__ import annotations

import os

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.sec.audit import AuditService

from cupola.base.frames import after_receipt
from cupola.engines.child_process import ONE_THREAD, ChildProcess
from cupola.engines.flare.announce import say
from cupola.engines.flare.jobs import FOLDER, KIND, MARKS
from cupola.engines.flare.logging_lock import lock_logging
from cupola.engines.flare.transport import BODY

OPENS = "cupola.site.party_process:open_party"


class CupolaExecutor(Executor):
    """study: the only thing that a job chooses; what it means was agreed at the site before."""

    def __init__(self, study: str) -> None:
        super().__init__()
        lock_logging()
        if not isinstance(study, str):
            raise TypeError("a study is named by text")
        self._study = study
        self._child: ChildProcess | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        del fl_ctx
        if event_type in (EventType.END_RUN, EventType.ABORT_TASK) and self._child is not None:
            self._child.stop()
            self._child = None
            say(self._study, "over")

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        del fl_ctx
        body = shareable.get(BODY)
        if task_name not in MARKS or not isinstance(body, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        if self._child is None:
            say(self._study, "begins")
            # Where this party keeps things is told by its own command, never by a job.
            folder, kind = os.environ[FOLDER], os.environ[KIND]
            facts = {"folder": folder, "kind": kind, "study": self._study}
            # What the party's own environment says of threads holds.
            self._child = ChildProcess(OPENS, facts, {**ONE_THREAD, **os.environ})
        answer = self._child.ask(MARKS[task_name] + body, lambda: bool(abort_signal.triggered))
        told = after_receipt(answer)
        if told[:1] == b"F":  # it declined
            AuditService.add_event(
                user="", action="cupola.declined", msg=told[1:].decode(errors="replace")[:200]
            )
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = answer
        return reply
