"""What a run is summed up by: result.json, partition.json, and what is printed at its end."""

from __future__ import annotations

import math
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from pydantic import BeforeValidator

import cupola
from cupola.analysis.result import Facts, Result
from cupola.analysis.run_folder import Run
from cupola.base.formatting import (
    LOWER_IS_BETTER,
    count,
    duration,
    epsilon,
    main_metric,
    metric,
    number,
    size,
)
from cupola.data.dataset import FederatedData
from cupola.data.site_picture import holdings
from cupola.training.adapters import base_name
from cupola.training.frozen import share
from cupola.training.loop import Training
from cupola.training.plan import Plan
from cupola.training.spending import spent
from cupola.training.workspace import TrainingHost

if TYPE_CHECKING:
    from rich.table import Table

SITES_SHOWN = 200
SIZES_LISTED = 10_000


class Round(Facts):
    """What was measured in a round, by where: `test`, `sites_test`, `validation`, ..."""

    round: int = 0
    test: Facts | None = None
    sites_test: Facts | None = None
    validation: Facts | None = None
    sites_validation: Facts | None = None
    train: Facts | None = None


class Spent(Facts):
    """What the sites have spent of their privacy: the largest epsilon of any; infinite, which JSON
    has no number for, where nothing is noised."""

    mechanism: str
    unit: str
    neighbours: str
    epsilon: Annotated[float, BeforeValidator(lambda told: math.inf if told is None else told)]
    delta: float


class TrainingResult(Result):
    """What a training leaves behind. `final` is its last round, `best` the one chosen on validation
    data. privacy: None without privacy, and of real sites, who keep their own books."""

    recipe: str | None = None
    seed: int | None = None
    rounds: int = 0
    planned_rounds: int | None = None
    final: Round | None = None
    best: Round | None = None
    parameters: int | None = None
    trainable: int | None = None
    model: str | None = None
    data: str | None = None
    classes: int | None = None
    sites: int | None = None
    confusion: list[list[int]] | None = None
    privacy: Spent | None = None
    twin: Facts | None = None
    personal: Facts | None = None


def result(
    plan: Plan,
    folder: Path,
    record: dict[str, Any],
    host: TrainingHost | None = None,
    program: Training | None = None,
    *,
    twin: dict[str, Any] | None = None,
    personal: dict[str, Any] | None = None,
    real: bool = False,
    private: bool = True,
) -> dict[str, Any]:
    """The summary of a run, as far as it has come.

    record: the training's own of the last round, which may hold a confusion matrix. real: sites
    keep their own books, so that what they spent is not known here.
    """
    history = Run(folder, plan).history
    last = history[-1] if history else {}
    release = None if plan.personalise is None else plan.personalise.release
    counted = None if program is None else share(program.space.module)
    sent = {
        "bytes_down": last.get("bytes_down", 0),
        "bytes_up": last.get("bytes_up", 0),
        "seconds": last.get("seconds", 0.0),
    }
    rounds = last.get("round", 0)
    return {
        "recipe": plan.recipe,
        "rounds": rounds,
        "planned_rounds": plan.rounds,
        "final": last or None,
        "best": _best(plan, history),
        **({} if personal else sent),  # which comes after the last round
        "parameters": None if counted is None else counted.parameters,
        "trainable": None if counted is None else counted.trained,
        "model": plan.model.name,
        "source": None if program is None else program.space.frozen.installed,
        **({} if (base := base_name(plan)) is None else {"base": base}),
        "data": plan.data.name,
        "input_shape": None if host is None else list(host.problem.input_shape),
        "classes": None if host is None else host.problem.classes,
        "sites": None if host is None else len(host),
        "versions": {
            "cupola": cupola.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "confusion": _confusion(record),
        "privacy": None
        if program is None or real or not private
        else spent(program, folder, rounds, personal is not None, release),
        "twin": twin,
        "personal": personal,
    }


def _confusion(record: dict[str, Any]) -> list[list[int]] | None:
    """On test data, at the coordinator or summed over sites; else on validation data."""
    splits = ("test", "sites_test", "validation", "sites_validation")
    found = (record[split].get("confusion") for split in splits if split in record)
    return next((matrix for matrix in found if matrix), None)


def _best(plan: Plan, history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The evaluated round that is best on validation data; test data choose nothing."""
    metric = plan.evaluation.metric
    sign = -1 if metric in LOWER_IS_BETTER else 1
    for where in ("validation", "sites_validation"):
        scores = [(r[where].get(metric), r) for r in history if where in r]
        judged = [(sign * s, r) for s, r in scores if s is not None]
        if judged:
            return max(judged, key=lambda pair: pair[0])[1]
    return None


def partition_table(data: FederatedData) -> dict[str, Any]:
    """Who holds what: class counts of the first sites, training samples of more of them."""
    counts = holdings(data, SITES_SHOWN)
    listed = np.arange(min(len(data), SIZES_LISTED if data.knows_sizes else SITES_SHOWN))
    names = data.class_names or tuple(str(c) for c in range(data.classes or 0))
    return {
        "sites": len(data),
        "classes": list(names) if data.kind == "classification" else [],
        "counts": counts.T.tolist(),
        "sizes": data.sizes(listed).tolist(),
        "names": [data.site_name(i) for i in range(counts.shape[1])],
    }


def show(run: Run, quiet: bool) -> list[Any]:
    """What is printed of a run at its end: lines, and tables of `rich`."""
    result = run.result
    final = result.get("final") or {}
    judged = main_metric(final) or "not evaluated (`cupola check` tells why)"
    sent = size(result.bytes_down + result.bytes_up)
    found: list[Any] = [
        f"{result.rounds} rounds, {judged}, {sent} sent, {duration(result.seconds)}"
    ]
    if private := result.privacy:
        unit = "a site" if private.unit == "site" else "an example, at the site that spent most"
        found.append(
            f"epsilon {epsilon(private.epsilon)} at delta {private.delta:g} "
            f"({private.neighbours}) for {unit} ({private.status})"
        )
    if result.reason:
        found.append(f"stopped early: {result.reason}")
    if result.personal:
        found.append(_methods(result["personal"]))
    if result.twin:
        found.append(f"centralised twin: {main_metric(result['twin'].get('final') or {})}")
    for code, n in (final.get("failed") or {}).items():
        found.append(f"[yellow]{count(n, 'site')} without answer:[/] {code}")
    return found if quiet else [*found, f"[dim]report:[/] {run.folder / 'report.html'}"]


def _methods(personal: dict[str, Any]) -> Table:
    """Personalisation: every method's mean over sites, and who gained or lost by it."""
    from rich.table import Table

    from cupola.training.personalise.personal_section import METHODS

    name, groups = personal["metric"], personal.get("groups") or {}
    said = "personalisation"
    if groups:
        said += f": {count(groups['number'], 'group')}"
    if groups.get("ari") is not None:
        said += f", adjusted Rand index {groups['ari']:.3g}"
    table = Table(title=said, title_justify="left")
    table.add_column("")
    for column in (f"{name}, mean over sites", "worst tenth", "gained", "lost"):
        table.add_column(column, justify="right")
    for method, facts in personal["methods"].items():
        table.add_row(
            METHODS.get(method, method),
            metric(name, facts.get("test")),
            metric(name, facts.get("worst")),
            number(facts.get("better")),
            number(facts.get("worse")),
        )
    return table
