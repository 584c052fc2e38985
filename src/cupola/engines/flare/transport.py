"""Transport over FLARE: one message to parties and their answers back, as tasks of plain bytes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from cupola.engines.child_process import LATE

BODY = "message"
GRACE = 3.0  # seconds within which a party that was away must fetch its task


class Transport:
    """Sends bytes from a running controller. away: parties that gave no answer last time; they are
    waited for again as soon as they ask for work."""

    def __init__(self, controller: Controller, context: FLContext, abort: Signal) -> None:
        self.controller, self.context, self.abort = controller, context, abort
        self.away: set[str] = set()

    def ask(
        self, message: bytes, parties: Sequence[str], timeout: float, kind: str
    ) -> Mapping[str, bytes | str]:
        """Each party's answer, or the code of why there is none."""
        call = _Call(self.away & set(parties))
        data = Shareable()
        data[BODY] = message
        task = Task(
            kind,
            data,
            before_task_sent_cb=call.sent,
            result_received_cb=call.received,
        )
        self.controller.broadcast(
            task, self.context, targets=list(parties), min_responses=len(parties)
        )
        try:
            call.wait(set(parties), timeout, self.abort)
        finally:
            if len(call.answers) < len(parties):
                self.controller.cancel_task(task, fl_ctx=self.context)
        answers = {name: call.answers.get(name, LATE) for name in parties}
        for name, answer in answers.items():
            (self.away.add if answer == LATE else self.away.discard)(name)
        return answers


class _Call:
    def __init__(self, away: set[str]) -> None:
        self.away, self.fetched = away, set[str]()
        self.answers: dict[str, bytes | str] = {}
        self.changed = threading.Condition()

    def sent(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        del fl_ctx
        with self.changed:
            self.fetched.add(client_task.client.name)
            self.changed.notify()

    def received(self, client_task: ClientTask, fl_ctx: FLContext) -> None:
        del fl_ctx
        answer = _body(client_task.result)
        client_task.result = None  # FLARE would keep it as long as the task
        with self.changed:
            self.answers.setdefault(client_task.client.name, answer)
            self.changed.notify()

    def wait(self, parties: set[str], timeout: float, abort: Signal) -> None:
        began = time.monotonic()
        with self.changed:
            while True:
                waited = time.monotonic() - began
                given_up = self.away - self.fetched if waited > GRACE else set()
                if waited > timeout or not parties - set(self.answers) - given_up:
                    return
                if abort.triggered:
                    raise KeyboardInterrupt("the job was stopped")
                self.changed.wait(0.2)


def _body(result: Any) -> bytes | str:
    code = result.get_return_code() if isinstance(result, Shareable) else "no answer"
    if code != ReturnCode.OK:
        return f"FLARE: {code}"
    body = result.get(BODY)
    return body if isinstance(body, bytes) else "answer is not bytes"
