"""A child process that answers messages: bytes in, bytes out, over two pipes.

The child makes what answers from a 'module:function' and plain arguments; no objects are shared. It
may crash or hang over a message: that costs one answer, and the next message gets a new child.
This file imports no numerical code, so that a FLARE job's own process stays small.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

from cupola.base.frames import read_frame, write_frame
from cupola.base.importing import imported

ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
LATE, DEAD = "late", "dead"  # codes of a child that gave no answer in time, or died
DIED = b"Bthe site's process died"  # what is told in place of an answer
STOPPED = b"Bstopped"
_MAIN = "from cupola.engines.child_process import main; main()"


class ChildProcess:
    """The parent's end. Messages are numbered, so that a late answer to an older one is recognised
    and thrown away.

    opens, facts: 'module:function' and its arguments, by which the child makes what answers: an
    object with `answer(bytes) -> bytes`. environment: of the child.
    """

    def __init__(
        self, opens: str, facts: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self._opens = json.dumps({"opens": opens, "facts": dict(facts)}).encode()
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._threads: list[Thread] = []
        self._sent = 0
        self._largest: int | None = 0

    def send(self, message: bytes, largest: int | None = None) -> int:
        """Send a message to the child, which is started if there is none; the message's number.
        largest: bytes of an answer; of a larger one nothing is read. None: any."""
        if self._process is None or self._process.poll() is not None:
            self._start()
        if largest is None or self._largest is None:
            self._largest = None
        else:
            self._largest = max(self._largest, largest)
        return self._put(message)

    def receive(self, number: int, deadline: float) -> bytes | str:
        """The answer to a message, or the code of why there is none."""
        while True:
            try:
                frame = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return LATE
            if not frame:
                self._answers.put(b"")  # for whoever asks about another message
                return DEAD
            if int.from_bytes(frame[:8], "little") == number:
                return frame[8:]

    def ask(self, message: bytes, stopped: Callable[[], bool]) -> bytes:
        """The child's answer, however long it takes; else what is told in its place."""
        number = self.send(message)
        while not stopped():
            answer = self.receive(number, time.monotonic() + 0.2)
            if isinstance(answer, bytes):
                return answer
            if answer == DEAD:
                self.stop()
                return DIED
        self.stop()
        return STOPPED

    def stop(self) -> None:
        """End the child, whatever it does."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        self._questions.put(b"")
        for thread in self._threads:
            thread.join()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()

    def _start(self) -> None:
        self.stop()
        process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,  # what it prints goes to stderr, which is ours (see `main`)
            env=self._environment,
        )
        self._process, self._largest = process, 0
        self._questions: Queue[bytes] = Queue()
        self._answers: Queue[bytes] = Queue()
        # Threads on both pipes: a frozen child must not block us in a write.
        self._threads = [
            Thread(target=self._read, args=(process, self._answers), daemon=True),
            Thread(target=_write, args=(process.stdin, self._questions), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        self._put(self._opens)

    def _put(self, message: bytes) -> int:
        self._sent += 1
        self._questions.put(self._sent.to_bytes(8, "little") + message)
        return self._sent

    def _read(self, process: subprocess.Popen[bytes], answers: Queue[bytes]) -> None:
        assert process.stdout is not None
        with contextlib.suppress(OSError, ValueError):
            while frame := read_frame(process.stdout, lambda: self._largest):
                answers.put(frame)
        process.kill()  # nothing it may still say can be understood: it starts anew
        process.wait()  # before anybody hears of it, so that the next message does not go to it
        answers.put(b"")


def _write(pipe: IO[bytes], questions: Queue[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):  # a dead child shows in `receive`
        while frame := questions.get():
            write_frame(pipe, frame)


def main() -> None:
    """The child's end: answer until the stream ends. A computation that prints must not speak into
    the answers, so stdout is handed over to them and closed off."""
    inbox, outbox = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    start = json.loads(read_frame(inbox)[8:])
    answering = imported(start["opens"])(**start["facts"])
    while frame := read_frame(inbox):
        write_frame(outbox, frame[:8] + answering.answer(frame[8:]))
