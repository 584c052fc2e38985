"""What a running study has left in its folder so far, piece by piece."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cupola.base.formatting import finite
from cupola.federation.ledger import COMPENSATOR
from cupola.pages.folder import SPLITS

_TAIL = 1 << 18  # bytes of the ledger that are looked at for the state of sites
_AT_ONCE = 1 << 20
_NO_CURVE = ("round", "step", "sites", "seconds", "bytes_down", "bytes_up")
#: Of real sites, whose ledger comes at the end: those that gave no answer, and what was last asked.
AWAY = "away.json"


@dataclass
class Follow:
    """Reads whole lines of growing files, from where it was."""

    folder: Path
    places: dict[str, int] = field(default_factory=dict)

    def lines(self, name: str) -> list[dict[str, Any]]:
        """New records of a file. One that became shorter (a resume cuts it) is read anew."""
        path = self.folder / name
        try:
            size = path.stat().st_size
        except OSError:
            return []
        at = self.places.get(name, 0)
        if size < at:
            at = 0
        with path.open("rb") as file:
            file.seek(at)
            data = file.read(_AT_ONCE)
        whole = data[: data.rfind(b"\n") + 1]
        self.places[name] = at + len(whole)
        return [record for line in whole.splitlines() if (record := _record(line))]

    def rounds(self) -> list[dict[str, Any]]:
        """New rounds, as the live page draws them."""
        return [point(record) for record in self.lines("run/history.jsonl")]

    def events(self) -> list[dict[str, Any]]:
        return self.lines("events.jsonl")

    @property
    def mark(self) -> str:
        """Where it is, as text that a browser gives back when it connects again."""
        return ",".join(f"{name}:{at}" for name, at in sorted(self.places.items()))

    def go_to(self, mark: str) -> None:
        for part in mark.split(","):
            name, _, at = part.rpartition(":")
            if name in ("run/history.jsonl", "events.jsonl") and at.isdigit():
                self.places[name] = int(at)


def point(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the history as points of curves, by name: of a round what was judged, else
    whatever numbers an analysis writes down."""
    split = next((s for s in SPLITS if isinstance(record.get(s), dict)), None)
    judged: dict[str, Any] = record.get(split or "") or record
    own = () if "round" in record else [n for n in record if n not in _NO_CURVE][:4]
    names = ("accuracy", "loss") if split else own
    shown = {n.capitalize().replace("_", " "): judged[n] for n in names if finite(judged.get(n))}
    sent = (record.get("bytes_down") or 0) + (record.get("bytes_up") or 0)
    return {
        "round": record.get("round", record.get("step")),
        "curves": shown | {"Bytes sent": sent},
    }


def site_states(folder: Path, names: list[str]) -> list[dict[str, str]]:
    """What each site did when it was last asked, by the end of the ledger."""
    path = folder / "run" / "ledger.jsonl"
    found: dict[int, tuple[str, str]] = {}
    if path.exists():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            for line in file.read().splitlines():
                entry = _record(line)
                if not entry or not isinstance(entry.get("sites"), list):
                    continue
                step = f"{entry.get('task')}, step {entry.get('step')}"
                found |= {int(s): ("answered", step) for s in entry["sites"]}
                failed = entry.get("failed") or {}
                found |= {int(s): (_word(code), f"{code}, {step}") for s, code in failed.items()}
    away, asked = _away(folder)
    if asked and not found:
        found = dict.fromkeys(range(len(names)), ("working", asked))
    for name in away:
        if name in names:
            found[names.index(name)] = ("late", "no answer")
    found.pop(COMPENSATOR, None)
    count = max(len(names), 1 + max(found, default=-1))
    shown = [names[i] if i < len(names) else f"site {i}" for i in range(min(count, 200))]
    none = ("present", "not asked yet")
    return [
        {"site": name, "state": found.get(i, none)[0], "last": found.get(i, none)[1]}
        for i, name in enumerate(shown)
    ]


def _away(folder: Path) -> tuple[list[str], str]:
    try:
        found = json.loads((folder / AWAY).read_text("utf-8"))
        return [str(name) for name in found["away"]], str(found["asked"])
    except (OSError, ValueError, LookupError, TypeError):
        return [], ""


def last_event(folder: Path) -> dict[str, Any]:
    """How far a run is: the last line of its events."""
    path = folder / "events.jsonl"
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 1000))
        lines = file.read().splitlines()
    return (_record(lines[-1]) or {}) if lines else {}


def _word(code: Any) -> str:
    return "late" if "time" in str(code) or "late" in str(code) else "dropped"


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
