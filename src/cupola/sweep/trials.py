"""What sweeps and searches have in common: a folder of trials, judged on validation data alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from cupola import report
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.protocol import Watch
from cupola.analysis.session import run
from cupola.base.files import write_atomically
from cupola.errors import FederationError, PlanError
from cupola.pages.folder import RunFolder

NOT_CHARGED = (
    "Private tuning: not charged. Trying many settings looks at the data many times; the epsilon "
    "of each run is its own, and that of the chosen one does not cover the search."
)


def seeds_of(plan: PlanHeader) -> tuple[int, ...]:
    """The seeds that every trial is run with."""
    return plan.seeds or (plan.seed,)


def claim(folder: Path, kind: str, definition: dict[str, Any], *, grows: str = "") -> None:
    """Take a folder for a sweep or a search, or go on in its own. grows: a key that may have
    another value then; what was tried stays as it is."""
    path, mine = folder / f"{kind}.toml", tomli_w.dumps(definition)
    if path.exists():
        there, ours = tomllib.loads(path.read_text("utf-8")), tomllib.loads(mine)
        if {**there, grows: 0} != {**ours, grows: 0}:
            raise PlanError(f"{folder} holds another {kind} ({kind}.toml); choose another --out")
    elif folder.is_dir() and any(folder.iterdir()):
        raise PlanError(f"{folder} holds other files; choose a new folder (--out)")
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(path, mine)


def folders_of(folder: Path, number: int, seeds: Sequence[int]) -> list[Path]:
    """The run folders of a trial, one per seed. number: from 1."""
    name = f"trial-{number:03d}"
    return [folder / (f"{name}-seed-{seed}" if len(seeds) > 1 else name) for seed in seeds]


def write_list(
    folder: Path, trials: Iterable[tuple[str, Mapping[str, Any], list[Path]]], seeds: Sequence[int]
) -> None:
    """The list of runs that reports read. trials: label, settings, run folders."""
    entries = [
        {
            "label": label + (f", seed {seed}" if len(seeds) > 1 else ""),
            "folder": path.name,
            "group": label,
            "settings": {**settings, "seed": seed},
        }
        for label, settings, folders in trials
        for path, seed in zip(folders, seeds)
    ]
    write_atomically(folder / "runs.json", json.dumps(entries, indent=2))


def listed(folder: Path, seeds: int) -> list[dict[str, Any]]:
    """The settings of the trials that a folder's list names, in their order."""
    path = folder / "runs.json"
    entries = json.loads(path.read_text("utf-8"))[::seeds] if path.exists() else []
    return [{k: v for k, v in one["settings"].items() if k != "seed"} for one in entries]


def judged(
    plan: PlanHeader, folder: Path, progress: Watch | None, *, anew: bool = False
) -> tuple[RunFolder, float]:
    """A run, carried out or resumed, and its score. FederationError: it has none, because it
    diverged or was not evaluated; that is a result, too."""
    run(plan, folder, resume=not anew, overwrite=anew, progress=progress)
    found, analysis = report.open_run(folder), analysis_of(plan)
    score = analysis.score(found)
    if score is None:
        raise FederationError(f"{analysis.metric or 'nothing'} was not measured on validation data")
    return found, score


def draw_report(folder: Path, summary: dict[str, Any], name: str, section: str) -> Path:
    """The report: all trials, and what is particular to this kind."""
    return report.compare(
        [folder],
        folder / "report.html",
        name=name,
        extra=[section],
        remark=summary["privacy"],
        crown=False,  # validation data have chosen; the test data below are to be looked at only
    )
