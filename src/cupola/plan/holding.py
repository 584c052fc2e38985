"""Who may write to a folder, under which name, and until when: for runs and studies."""

from __future__ import annotations

import json
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cupola.errors import CupolaError, PlanError
from cupola.plan.checkpoint import write_atomically

LOCK = ".lock"


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Records of a file of JSON lines; a line torn by a crash ends it."""
    with path.open("rb") as file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            yield json.loads(line)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder against other processes; the system frees it when its holder dies."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK).open("a+")
    except OSError as error:
        raise PlanError(f"cannot write to {folder}: {error.strerror}") from None
    with file:
        if not _take(file.fileno()):
            file.seek(0)
            raise CupolaError(
                f"{folder} is in use by process {file.read().strip() or 'unknown'}; "
                "wait for it, or choose another folder"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _take(handle: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C and a request to terminate stop between two steps (in the main thread)."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    known = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: stop()) for number in known}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def run_id(folder: Path | None, name: str) -> str:
    """Names a run in a file that outlives it: the same after a resume, another for a new run."""
    if folder is None:
        return secrets.token_hex(8)
    path = folder / f"{name}.id"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(path, secrets.token_hex(8))
    return path.read_text().strip()
