"""The ledger: who was asked what, what the answer reveals, and how many bytes it took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

COMPENSATOR = -1  # in the place of a site: the third party of masked sums


@dataclass(frozen=True)
class Entry:
    """One question. Bytes are per site; sites that failed have sent nothing that counts."""

    step: int
    round: int
    task: str
    kind: str
    sites: list[int]
    failed: dict[int, str]
    bytes_down: int
    bytes_up: int | list[int]
    reveals: str
    protection: str = "none"

    def up(self) -> list[int]:
        """Bytes sent by each of `sites`."""
        if isinstance(self.bytes_up, int):
            return [self.bytes_up] * len(self.sites)
        return self.bytes_up


class Ledger:
    """Totals per site, kept in memory; every entry goes to `write` (a run's ledger.jsonl)."""

    def __init__(self, write: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.write = write
        self.down: dict[int, int] = {}
        self.up: dict[int, int] = {}
        self.bytes_down = 0
        self.bytes_up = 0

    def add(self, entry: Entry) -> None:
        up = entry.up()
        for site in (*entry.sites, *entry.failed):
            self.down[site] = self.down.get(site, 0) + entry.bytes_down
        for site, size in zip(entry.sites, up, strict=True):
            self.up[site] = self.up.get(site, 0) + size
        self.bytes_down += entry.bytes_down * (len(entry.sites) + len(entry.failed))
        self.bytes_up += sum(up)
        if self.write is not None:
            self.write(asdict(entry))

    def export(self) -> dict[str, Any]:
        return {"down": self.down, "up": self.up}

    def restore(self, state: dict[str, Any]) -> None:
        self.down = {int(k): v for k, v in state["down"].items()}
        self.up = {int(k): v for k, v in state["up"].items()}
        self.bytes_down, self.bytes_up = sum(self.down.values()), sum(self.up.values())


def common(sizes: Sequence[int]) -> int | list[int]:
    """One number where all sites sent the same, else the list."""
    return sizes[0] if sizes and len(set(sizes)) == 1 else list(sizes) if sizes else 0
