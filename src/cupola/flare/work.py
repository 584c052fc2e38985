"""A job's end of the pipe to the child process in which a party computes its answers.

The job's own process imports no numerical code: it starts quickly, stays small, and cannot be
brought down by a computation.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

from cupola.frames import read_frame, write_frame

DIED = b"Bthe site's process died"
STOPPED = b"Bstopped"


class Worker:
    """Answers bytes by bytes in a child (see `cupola.federation.separate.main`). One that dies over
    a question costs that answer only. opens, facts: how the child makes what answers."""

    def __init__(self, opens: str, facts: Mapping[str, Any]) -> None:
        self._start = {"opens": opens, "facts": dict(facts)}
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: Queue[bytes] = Queue()

    def ask(self, message: bytes, stopped: Callable[[], bool]) -> bytes:
        try:
            process = self._running()
            assert process.stdin is not None
            write_frame(process.stdin, bytes(8) + message)
        except OSError:
            self.stop()
            return DIED
        while not stopped():
            try:
                frame = self._frames.get(timeout=0.2)
            except Empty:
                continue
            if frame:
                return frame[8:]
            self.stop()
            return DIED
        self.stop()
        return STOPPED

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        code = "from cupola.federation import separate; separate.main()"
        environment = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **os.environ}
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert process.stdin is not None
        self._process, self._frames = process, Queue()
        Thread(target=_read, args=(process.stdout, self._frames), daemon=True).start()
        write_frame(process.stdin, bytes(8) + json.dumps(self._start).encode())
        return process

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()
        self._process = None


def _read(pipe: IO[bytes], frames: Queue[bytes]) -> None:
    with contextlib.suppress(OSError, ValueError):
        while frame := read_frame(pipe):
            frames.put(frame)
    frames.put(b"")
