"""Atomic, durable writes: a file has its old or its new content, whatever happens. And locks: one
process at a time.

The new content is written beside the file, brought to disk, and given its name in one step. A crash
leaves at most a file that ends in '.part', which the next write replaces.

A lock on an open file is freed by the system when its holder dies. It belongs to the open file
(flock), not to the process: a child that inherits the descriptor goes on holding it, and nobody has
to clean up after a crash. That is why it is not `filelock`, which closes its files at a fork and
locks files of its own beside the data.

    with path.open("a+b") as file:
        if not take(file, wait=10.0):
            raise DataError(f"{path} is in use by another process; wait for it to end")
        ...                                 # held until the file is closed
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FAR = 1 << 62  # a byte far behind the end of any file: on Windows a locked byte cannot be read


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """What is written here becomes the file when all of it is written; on disk after the block.
    private: for its owner alone. Otherwise who may read a file that is there stays as it was."""
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)  # another's, or one that others may read
    mode = 0o600 if private else 0o666
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "w+b") as file:
            if not private and path.exists():
                part.chmod(path.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        with suppress(OSError):  # a full disk gets its room back
            part.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_atomically(
    path: Path, content: bytes | str | Iterable[bytes | memoryview], *, private: bool = False
) -> None:
    """A file's new content, in one piece or several."""
    if isinstance(content, bytes | str):
        content = [content.encode() if isinstance(content, str) else content]
    with replacing(path, private=private) as file:
        for piece in content:
            file.write(piece)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


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
