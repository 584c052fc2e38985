"""Files of JSON lines, each a hash chain (see `chain`): read them, add to them.

`Log` belongs to a run: a resume cuts it back to its checkpoint. `DurableLog` is never cut back: a
line is on disk before `append` returns, since something was promised on its account.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cupola.base.chain import AGAIN, Chain, Tail, damaged
from cupola.base.files import sync_folder, take
from cupola.errors import DataError


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Records of a file of JSON lines, verified; a line torn by a crash ends it."""
    return Chain().read(path, path.read_bytes())


def json_line(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are not finite become null."""
    separators = (",", ":") if indent is None else None
    try:
        return json.dumps(value, allow_nan=False, indent=indent, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), indent=indent, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def write_whole(file: IO[bytes] | io.FileIO, data: bytes) -> None:
    """All of it: on a full disk the first part may pass without an error."""
    sent = 0
    while sent < len(data):
        sent += file.write(data[sent:]) or 0


class Log:
    """A hash chain (see `cupola.base.chain`) that is cut back to where a run goes on; `length` is
    what has been written, in bytes. tail: what it must be there."""

    def __init__(self, path: Path, length: int = 0, tail: Tail | None = None) -> None:
        self.path, self.length, self._chain = path, length, Chain()
        with path.open("rb") if path.exists() else io.BytesIO() as file:
            kept = file.read(length)
        if len(kept) < length or kept[-1:] not in (b"", b"\n"):
            raise damaged(path, "it is shorter than its checkpoint says", AGAIN)
        for _ in self._chain.read(path, kept):
            pass
        if tail is not None:
            self._chain.require(path, tail)
        self._file: io.FileIO | None = None
        if path.exists():
            self._opened().truncate(length)

    def _opened(self) -> io.FileIO:
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        return self._file

    @property
    def tail(self) -> Tail:
        return self._chain.tail

    def write(self, record: Mapping[str, Any]) -> None:
        line, _ = self._chain.line(json_line(record))
        write_whole(self._opened(), line)
        self._chain.take(line[:-1])
        self.length += len(line)

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class DurableLog:
    """A hash chain that one process at a time adds to; open it, `read` it, then `append`.

    busy: what is said where another process has it. way_out: of damage. durable: whether lines are
    brought to disk before they count. After a write that failed it is closed: what is on disk is
    unknown, and only opening it again can tell.
    """

    def __init__(
        self, path: Path, *, busy: str, way_out: str = AGAIN, durable: bool = True
    ) -> None:
        self.path, self.durable, self._way_out = path, durable, way_out
        self.chain = Chain()
        self._end: int | None = None  # of whole lines; a torn one may be behind them
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: io.FileIO | None = path.open("a+b", buffering=0)
        if not take(self._file):
            self.close()
            raise DataError(busy)

    def read(self) -> list[dict[str, Any]]:
        """All records, verified. A line without its end was being written when the process died:
        nothing was promised on its account, so it does not count, and the next one replaces it."""
        whole = self.path.read_bytes()
        found = list(self.chain.read(self.path, whole, self._way_out))
        self._end = whole.rfind(b"\n") + 1
        if self.durable:
            sync_folder(self.path.parent)  # else a power cut may take the file itself
        return found

    def cut(self) -> None:
        """Drop a torn line now, not when the next one replaces it."""
        if self._file is not None and self._end is not None:
            self._file.truncate(self._end)
            self._end = None

    def append(self, record: Mapping[str, Any]) -> None:
        """One more line."""
        if self._file is None:
            raise OSError(f"{self.path} is closed")
        try:
            self.cut()
            line, _ = self.chain.line(json.dumps(record, separators=(",", ":")))
            write_whole(self._file, line)
            if self.durable:
                os.fsync(self._file.fileno())
        except BaseException:
            self.close()
            raise
        self.chain.take(line[:-1])

    def close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None
