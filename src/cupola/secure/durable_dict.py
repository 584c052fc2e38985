"""What a party must not forget: keys and values in a hash chain, durable before they are used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupola.base.chain import Chain, Tail
from cupola.base.jsonl import DurableLog

_COPY = "restore it from a copy (a party without its memory could be made to tell twice)"


class Memory:
    """A growing table of plain values in a file, a line an entry; without a path, in memory.

    `setdefault` returns only after the entry is on disk. A line that was being written when the
    process died is dropped: nothing was answered on its account. One process at a time. The file
    is a hash chain (see `cupola.base.chain`): a changed, moved or missing line is damage.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._held: dict[str, Any] = {}
        self._lost = False
        self._log: DurableLog | None = None
        if path is None:
            return
        busy = f"{path} is in use by another process; wait for it to end"
        self._log = DurableLog(path, busy=busy, way_out=_COPY)
        try:
            for entries in self._log.read():
                self._held |= {key: entries[key] for key in entries if key not in self._held}
            self._log.cut()
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
        if new and self._log is not None:
            try:
                self._log.append(new)
            except BaseException:
                self.close()  # what is on disk is unknown: only a restart can tell
                raise
        self._held |= new
        return {key: self._held[key] for key in entries}

    @property
    def tail(self) -> Tail:
        """How many lines the file has, and the hash that stands for them."""
        return Chain().tail if self._log is None else self._log.chain.tail

    def require(self, tail: Tail) -> None:
        """DataError unless the file goes on from what was seen of it: it is no old copy."""
        if self._log is not None:
            self._log.chain.require(self._log.path, tail, _COPY)

    def close(self) -> None:
        self._lost = True
        if self._log is not None:
            self._log.close()
