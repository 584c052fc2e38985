"""What sweeps and searches have in common: a folder of trials, judged on validation data alone."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from cupola import report
from cupola.analysis.session import Watch, run
from cupola.base.files import write_atomically
from cupola.base.formatting import LOWER_IS_BETTER
from cupola.errors import FederationError, PlanError
from cupola.learn.build import federated_data
from cupola.learn.plan import Plan
from cupola.report import RunFolder

NOT_CHARGED = (
    "Private tuning: not charged. Trying many settings looks at the data many times; the epsilon "
    "of each run is its own, and that of the chosen one does not cover the search."
)
_HELD_OUT = ("test", "sites_test")
_VALIDATION = ("validation", "sites_validation")


def seeds_of(plan: Plan) -> tuple[int, ...]:
    """The seeds that every trial is run with."""
    return plan.seeds or (plan.seed,)


def require_validation(plan: Plan) -> None:
    """Refuse to select on anything but validation data."""
    one = plan.change({"seed": plan.seeds[0]}) if plan.seeds else plan
    data = federated_data(one)
    if len(data.public.get("validation", ())) or one.data.partition.validation:
        return
    raise PlanError(
        f"plan '{plan.name}' has no validation data, and test data must not select a setting: add "
        "--set data.partition.public_validation=0.5 (a share of the public test data) or "
        "--set data.partition.validation=0.1 (a share of each site's data)"
    )


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


def judged(
    plan: Plan, folder: Path, progress: Watch | None, *, anew: bool = False
) -> tuple[RunFolder, float]:
    """A run, carried out or gone on with, and its score on validation data. FederationError: it has
    none, because it diverged or was not evaluated; that is a result, too."""
    run(plan, folder, resume=not anew, overwrite=anew, progress=progress)
    found = report.open_run(folder)
    score = kept(found, plan.evaluation.metric, validation=True)
    if score is None:
        raise FederationError(f"{plan.evaluation.metric} was not measured on validation data")
    return found, score


def kept(run: RunFolder, metric: str, validation: bool = False) -> float | None:
    """The metric of the model the run leaves behind, on test or on validation data.

    That is its last model, or with evaluation.best the one that was best on validation data.
    """
    splits = _VALIDATION if validation else _HELD_OUT
    judged = [(r, v) for split in splits for r, v in run.curve(metric, split)]
    if not judged:
        return None
    evaluation = run.plan.get("evaluation")
    evaluation = evaluation if isinstance(evaluation, dict) else {}
    if not evaluation.get("best"):
        return _last(judged)
    by = str(evaluation.get("metric", "accuracy"))
    choice = [(v, r) for split in _VALIDATION for r, v in run.curve(by, split)]
    if not choice:
        return _last(judged)
    best = (min if by in LOWER_IS_BETTER else max)(choice, key=lambda pair: pair[0])[1]
    return next((v for r, v in judged if r is best), None)


def _last(judged: list) -> float:
    """Of the last round; public data before sites."""
    final = max(r.get("round", 0) for r, _ in judged)
    return next(v for r, v in judged if r.get("round", 0) == final)


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
