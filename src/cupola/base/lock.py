"""One process at a time: a lock on an open file, which the system frees when its holder dies.

A lock belongs to the open file (flock), not to the process: a child that inherits the descriptor
goes on holding it, and nobody has to clean up after a crash. That is why it is not `filelock`,
which closes its files at a fork and locks files of its own beside the data.

    with path.open("a+b") as file:
        if not take(file, wait=10.0):
            raise DataError(f"{path} is in use by another process; wait for it to end")
        ...                                 # held until the file is closed
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FAR = 1 << 62  # a byte far behind the end of any file: on Windows a locked byte cannot be read


def take(file: IO[Any] | int, wait: float = 0.0, pause: float = 0.05) -> bool:
    """Hold an open file (or its descriptor) until it is closed; False if another process holds it.

    wait: seconds to try (math.inf: until it is free); one that was told to end may still be at
    work. A system that cannot lock counts as held: to be refused is the safe side.
    """
    handle = file if isinstance(file, int) else file.fileno()
    deadline = time.monotonic() + wait
    if wait == math.inf and fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)
        return True
    while not _try(handle):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause)
    return True


def is_held(path: Path) -> bool:
    """Whether a process holds this file."""
    try:
        with path.open("rb") as file:
            return not take(file)
    except FileNotFoundError:
        return False


def _try(handle: int) -> bool:
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        import msvcrt

        place = os.lseek(handle, 0, os.SEEK_CUR)
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(handle, place, os.SEEK_SET)
    except OSError:
        return False
    return True
