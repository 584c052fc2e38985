"""Atomic, durable writes: a file has its old or its new content, whatever happens.

The new content is written beside the file, brought to disk, and given its name in one step. A crash
leaves at most a file that ends in '.part', which the next write replaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


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
