"""Experiment tracking: what a run's history holds, written to trackers that the plan names.

Only whoever carries out a plan, and keeps its folder, writes: a simulation, or the person who
submitted a plan to real sites (once its folder has come back). A site or a FLARE server that is
handed a plan with [track] does not look at it. What is written follows from the run folder alone,
so that a resume goes on where the tracked run ended (track.json), and a tracker that failed is
tried once more at the end.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cupola.analysis.checkpoint import json_line
from cupola.analysis.header import PlanHeader, Track
from cupola.analysis.kinds import find_kind
from cupola.analysis.overrides import flat as dotted
from cupola.analysis.protocol import Watch
from cupola.analysis.run_progress import Progress
from cupola.base.chain import read_json, read_result
from cupola.base.files import write_atomically
from cupola.base.formatting import finite
from cupola.base.jsonl import read_lines
from cupola.errors import CupolaError, PlanError

STATE = "track.json"
SUMMARY = ("plan.toml", "history.jsonl", "result.json")
_PAUSE = 1.0  # seconds between two messages, at least
#: Of a result, what is said elsewhere.
_NOT_RESULT = ("final/", "best/", "checksum")


def require_installed(plan: PlanHeader) -> None:
    """PlanError if a tracker that the plan names is not installed."""
    for name in _named(plan.track):
        if find_spec(name) is None:
            raise PlanError(
                f"track.{name}: {name} is not installed: pip install 'cupola[track]', "
                "or leave [track] out"
            )


@contextmanager
def tracked(plan: PlanHeader, folder: Path, watch: Watch | None = None) -> Iterator[Watch | None]:
    """What to call after every round, in place of `watch`; at the end, all that is left to say."""
    if plan.track is None:
        yield watch
        return
    tracks = [_Tracked(name, plan, folder) for name in _named(plan.track)]

    def tell(progress: Progress) -> None:
        for one in tracks:
            one.go_on()
        if watch is not None:
            watch(progress)

    try:
        yield tell
    finally:
        for one in tracks:
            one.end()


class _Tracked:
    """The run as one tracker sees it. written: records of the history that it has."""

    def __init__(self, name: str, plan: PlanHeader, folder: Path) -> None:
        self.name, self.plan, self.folder = name, plan, folder
        self.tracker: Any = None
        self.failed = False
        self.next = 0.0
        known = self._states().get(name) or {}
        self.run, self.written = known.get("run"), int(known.get("written", 0))

    def go_on(self) -> None:
        """Write what is new, unless that was only just done; at most a tenth of the time."""
        if self.failed or time.monotonic() < self.next:
            return
        began = time.monotonic()
        self._guarded(self._write)
        now = time.monotonic()
        self.next = now + max(_PAUSE, 10 * (now - began))

    def end(self) -> None:
        """The rest, and the result; also after a failure, which may be over."""
        self._guarded(self._end)

    def _guarded(self, act: Any) -> None:
        """A tracker that fails is no reason for a run to fail: it is said once."""
        try:
            act()
        except Exception as error:
            if not self.failed:
                said = " ".join(f"{type(error).__name__}: {error}".split())[:300]
                print(f"track.{self.name}: {said}; the run goes on without it", file=sys.stderr)
            self.failed = True

    def _write(self) -> None:
        if self.tracker is None:
            self._begin()
        path = self.folder / "history.jsonl"
        records = list(read_lines(path)) if path.exists() else []
        new = [
            (int(record.get("round", place + 1)), numbers_of(record))
            for place, record in enumerate(records)
        ][self.written :]
        if new:
            self.tracker.write(new)
            self.written = len(records)
            self._remember()

    def _begin(self) -> None:
        from cupola.analysis.trackers import TRACKERS

        assert self.plan.track is not None
        plan = {key: value for key, value in self.plan.to_dict().items() if key != "track"}
        project = self.plan.track.project or self.plan.name
        made = TRACKERS[self.name]
        self.tracker = made(
            self.plan.track, project, self.folder.name, dict(dotted(plan)), self.run
        )
        self.run = self.tracker.id
        self._remember()

    def _end(self) -> None:
        self._write()
        result = read_result(self.folder)
        status = str(result.get("status", "unfinished"))
        found = {k: v for k, v in numbers_of(result).items() if not k.startswith(_NOT_RESULT)}
        self.tracker.end(status, found, self._files())

    def _files(self) -> list[Path]:
        assert self.plan.track is not None
        names = list(SUMMARY)
        if self.plan.track.artifacts == "results":
            kind = find_kind(self.plan.kind)  # what is fixed tells of the sites' data
            own = kind.files_of(self.plan.name)
            names += ["report.html", *(name for name in own if name not in kind.fixed)]
        return [
            path for name in names if (path := self.folder / name).is_file() and "/" not in name
        ]

    def _remember(self) -> None:
        known = {**self._states(), self.name: {"run": self.run, "written": self.written}}
        write_atomically(self.folder / STATE, json_line(known, indent=2))

    def _states(self) -> dict[str, Any]:
        try:
            found = read_json(self.folder / STATE)
        except (CupolaError, OSError):
            return {}
        return found if isinstance(found, dict) else {}


def numbers_of(record: dict[str, Any]) -> dict[str, float]:
    """Of a record, what can be drawn: 'validation/accuracy' -> value."""
    return {
        key: value for key, value in dotted(record, between="/") if key != "round" and finite(value)
    }


def _named(track: Track | None) -> list[str]:
    return [] if track is None else [n for n in ("mlflow", "wandb") if getattr(track, n)]
