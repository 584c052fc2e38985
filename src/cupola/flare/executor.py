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

from cupola.flare.carrier import BODY
from cupola.flare.closed import close_doors
from cupola.flare.jobs import MARKS
from cupola.flare.launch import FOLDER, KIND
from cupola.flare.work import Worker
from cupola.frames import after_receipt

OPENS = "cupola.flare.parties:open_party"


class CupolaExecutor(Executor):
    """study: the only thing that a job chooses; what it means was agreed at the site before."""

    def __init__(self, study: str) -> None:
        super().__init__()
        close_doors()
        if not isinstance(study, str):
            raise TypeError("a study is named by text")
        self._study = study
        self._worker: Worker | None = None

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        del fl_ctx
        if event_type in (EventType.END_RUN, EventType.ABORT_TASK) and self._worker is not None:
            self._worker.stop()
            self._worker = None

    def execute(
        self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal
    ) -> Shareable:
        del fl_ctx
        body = shareable.get(BODY)
        if task_name not in MARKS or not isinstance(body, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        if self._worker is None:
            # Where this party keeps things is told by its own command, never by a job.
            folder, kind = os.environ[FOLDER], os.environ[KIND]
            facts = {"folder": folder, "kind": kind, "study": self._study}
            self._worker = Worker(OPENS, facts)
        answer = self._worker.ask(MARKS[task_name] + body, lambda: bool(abort_signal.triggered))
        told = after_receipt(answer)
        if told[:1] == b"F":  # it declined
            AuditService.add_event(
                user="", action="cupola.declined", msg=told[1:].decode(errors="replace")[:200]
            )
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = answer
        return reply
