"""A run folder as files: read what is there, forgive what is not (an unfinished or killed run)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from cupola.base.chain import Chain, read_json, read_result, read_sealed
from cupola.base.formatting import LOWER_IS_BETTER, finite
from cupola.errors import DataError

SPLITS = {
    "test": "test data",
    "sites_test": "test data at the sites",
    "validation": "validation data",
    "sites_validation": "validation data at the sites",
}
_METRICS = ("accuracy", "r2", "rmse", "loss")


@dataclass(frozen=True)
class RunFolder:
    """What one run left behind.

    label: its name among others. group: what it shares with runs of the same setting, if named.
    """

    path: Path
    label: str
    plan: dict[str, Any]
    plan_text: str
    history: list[dict[str, Any]]
    result: dict[str, Any]
    partition: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    group: str = ""

    @property
    def name(self) -> str:
        return str(self.result.get("name") or self.plan.get("name") or self.path.name)

    @property
    def recipe(self) -> str:
        return str(self.result.get("recipe") or self.plan.get("recipe") or "")

    @property
    def seed(self) -> Any:
        return self.result.get("seed", self.plan.get("seed"))

    @property
    def status(self) -> str:
        return str(self.result.get("status") or "unfinished")

    @property
    def rounds(self) -> int:
        """Completed rounds."""
        last = self.last.get("round", 0)
        return int(last) if finite(last) else 0

    @property
    def last(self) -> dict[str, Any]:
        return self.history[-1] if self.history else {}

    @property
    def bytes_sent(self) -> float:
        """Down and up, all sites."""
        return sent(self.totals)

    @property
    def totals(self) -> dict[str, Any]:
        """Where bytes stand at the end, with what follows the last round."""
        return max(self.last, self.result, key=sent)

    @property
    def seconds(self) -> Any:
        """In all sessions, with what follows the last round."""
        told = [r.get("seconds") for r in (self.last, self.result)]
        return max((s for s in told if finite(s)), default=None)

    @cached_property
    def split(self) -> str | None:
        """Where the headline numbers come from: test data before validation data."""
        return next(
            (s for s in SPLITS if any(isinstance(r.get(s), dict) and r[s] for r in self.history)),
            None,
        )

    @cached_property
    def metric(self) -> str:
        """The metric the plan names if it was measured, else the usual one of the kind."""
        evaluation = self.plan.get("evaluation")
        wanted = evaluation.get("metric") if isinstance(evaluation, dict) else None
        seen = {m for r in self.history for m in (r.get(self.split or "") or {})}
        return next((str(m) for m in (wanted, *_METRICS) if m in seen), "accuracy")

    def curve(self, metric: str, split: str | None = None) -> list[tuple[dict[str, Any], float]]:
        """(record, value) wherever the metric was measured and is a finite number."""
        split = split or self.split or ""
        found = ((r, r[split].get(metric)) for r in self.history if isinstance(r.get(split), dict))
        return [(r, float(v)) for r, v in found if finite(v)]

    def final(self, metric: str | None = None, split: str | None = None) -> float | None:
        curve = self.curve(metric or self.metric, split)
        return curve[-1][1] if curve else None

    def best(self, metric: str | None = None, split: str | None = None) -> float | None:
        metric = metric or self.metric
        values = [v for _, v in self.curve(metric, split)]
        return (min if metric in LOWER_IS_BETTER else max)(values) if values else None

    def reached(self, target: float, metric: str | None = None) -> dict[str, Any] | None:
        """The first record at which the target was met, on the headline data."""
        metric = metric or self.metric
        below = metric in LOWER_IS_BETTER
        meets = (r for r, v in self.curve(metric) if (v <= target if below else v >= target))
        return next(meets, None)

    def ledger(self) -> Iterator[dict[str, Any]]:
        """Entries of ledger.jsonl, one at a time: it may be long."""
        yield from _lines(self.path / "ledger.jsonl")

    @cached_property
    def twin(self) -> RunFolder | None:
        folder = self.path / "twin"
        return open_run(folder, "centralised twin") if is_run(folder) else None


def sent(record: dict[str, Any]) -> float:
    """Bytes down and up until this record."""
    sizes = (record.get("bytes_down"), record.get("bytes_up"))
    return float(sum(v for v in sizes if finite(v)))


#: What curves are drawn against, from a record of the history.
AXES: dict[str, Callable[[dict[str, Any]], float]] = {
    "rounds": lambda r: float(r.get("round", 0)),
    "bytes": sent,
    "time": lambda r: float(r.get("seconds") or 0),
}


def is_run(folder: Path) -> bool:
    names = ("plan.toml", "study.toml", "history.jsonl", "result.json")
    return any((folder / name).is_file() for name in names)


def open_run(
    folder: Path,
    label: str | None = None,
    settings: dict[str, Any] | None = None,
    group: str = "",
) -> RunFolder:
    """Read a run folder; only the plan's text and whole lines of the history count."""
    source = _read(folder / "plan.toml") or _read(folder / "study.toml")
    try:
        plan = tomllib.loads(source)
    except tomllib.TOMLDecodeError:
        plan = {}
    return RunFolder(
        folder,
        label or folder.name,
        plan,
        source,
        list(_lines(folder / "history.jsonl")),
        read_result(folder, whole=True),
        _json(folder / "partition.json"),
        settings or {},
        group,
    )


def find_runs(folder: Path | str) -> list[RunFolder]:
    """The run, or the runs, in a folder: by runs.json, else every run folder below it."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; give the folder that `cupola run` has filled")
    if (folder / "runs.json").is_file():
        runs = [run for entry in _entries(folder) if (run := _listed(folder, entry))]
    elif is_run(folder):
        runs = [open_run(folder)]
    else:
        marks = {p.parent for p in folder.rglob("history.jsonl")}
        marks |= {p.parent for p in folder.rglob("plan.toml") if is_run(p.parent)}
        runs = [open_run(p, str(p.relative_to(folder))) for p in sorted(marks) if p.name != "twin"]
    if not runs:
        what = "no plan.toml, history.jsonl or runs.json in it"
        raise DataError(
            f"{folder} holds no run ({what}); give a folder that `cupola run` has filled"
        )
    return runs


def _entries(folder: Path) -> list[dict[str, Any]]:
    entries = read_json(folder / "runs.json")
    if not isinstance(entries, list):
        raise DataError(f"{folder / 'runs.json'} is damaged; run the plan again with --resume")
    return [entry for entry in entries if isinstance(entry, dict)]


def _listed(folder: Path, entry: dict[str, Any]) -> RunFolder | None:
    """A run named in runs.json, if it has started and lies inside the folder."""
    label = str(entry.get("label") or entry.get("folder"))
    path = folder / Path(str(entry.get("folder") or label))
    if not path.is_dir():
        path = folder / Path(str(entry.get("folder") or label)).name
    if not path.resolve().is_relative_to(folder.resolve()) or not is_run(path):
        return None
    settings = entry.get("settings")
    if isinstance(settings, list):
        settings = dict(str(s).split("=", 1) for s in settings if "=" in str(s))
    known = settings if isinstance(settings, dict) else {}
    return open_run(path, label, known, str(entry.get("group") or ""))


def _read(path: Path) -> str:
    return read_sealed(path)[0] if path.is_file() else ""


def _json(path: Path) -> dict[str, Any]:
    value = read_json(path) if path.is_file() else {}
    return value if isinstance(value, dict) else {}


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """JSON objects, line by line, verified, up to a line that a crash cut off."""
    return Chain().read(path, path.read_bytes()) if path.is_file() else iter(())
