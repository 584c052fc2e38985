"""What a party must not forget: keys and values in a hash chain, durable before they are used."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cupola.base.chain import Chain, Tail
from cupola.base.files import sync_folder
from cupola.errors import DataError

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


_COPY = "restore it from a copy (a party without its memory could be made to tell twice)"


class Memory:
    """A growing table of plain values in a file, a line an entry; without a path, in memory.

    `setdefault` returns only after the entry is on disk. A line that was being written when the
    process died is dropped: nothing was answered on its account. One process at a time. The file
    is a hash chain (see `cupola.base.chain`): a changed, moved or missing line is damage.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._held: dict[str, Any] = {}
        self._chain = Chain()
        self._path = path
        self._file: IO[bytes] | None = None
        self._lost = False
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b")
            try:
                self._read(path)
                sync_folder(path.parent)  # else a power cut may take the file itself
            except BaseException:
                self.close()
                raise

    def get(self, key: str) -> Any:
        return self._held.get(key)

    def listed(self, name: str) -> list[Any]:
        """The values under the keys 'name0', 'name1', ..., as far as they go."""
        found: list[Any] = []
        while (held := self._held.get(f"{name}{len(found)}")) is not None:
            found.append(held)
        return found

    def setdefault(self, key: str, value: Any) -> Any:
        """The value under this key, which is `value` from now on if there was none."""
        return self.update({key: value})[key]

    def update(self, entries: dict[str, Any]) -> dict[str, Any]:
        """Several entries at once, all or none of the new ones; what is held under their keys."""
        if self._lost:
            raise OSError("this memory is closed")
        new = {key: value for key, value in entries.items() if key not in self._held}
        if new and self._file is not None:
            try:
                line, _ = self._chain.line(json.dumps(new, separators=(",", ":")))
                self._file.write(line)
                self._file.flush()
                os.fsync(self._file.fileno())
                self._chain.take(line[:-1])
            except BaseException:
                self.close()  # what is on disk is unknown: only a restart can tell
                raise
        self._held |= new
        return {key: self._held[key] for key in entries}

    @property
    def tail(self) -> Tail:
        """How many lines the file has, and the hash that stands for them."""
        return self._chain.tail

    def require(self, tail: Tail) -> None:
        """DataError unless the file goes on from what was seen of it: it is no old copy."""
        if self._path is not None:
            self._chain.require(self._path, tail, _COPY)

    def close(self) -> None:
        self._lost = True
        if self._file is not None:
            with suppress(OSError):  # it tries to write what could not be written
                self._file.close()
            self._file = None

    def _read(self, path: Path) -> None:
        assert self._file is not None
        if fcntl is not None:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise DataError(
                    f"{path} is in use by another process; wait for it to end"
                ) from None
        self._file.seek(0)
        whole = self._file.read()
        end = whole.rfind(b"\n") + 1
        for entries in self._chain.read(path, whole, _COPY):
            self._held |= {key: entries[key] for key in entries if key not in self._held}
        self._file.truncate(end)
        self._file.seek(end)
