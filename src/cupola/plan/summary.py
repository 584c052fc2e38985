"""What a run is summed up by: result.json and partition.json."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import torch
from torch import nn

import cupola
from cupola.data import FederatedData, holdings
from cupola.learn import Training, TrainingHost
from cupola.learn.frozen import share
from cupola.plan.folder import Run
from cupola.plan.privacy import spent

SITES_SHOWN = 200
SIZES_LISTED = 10_000


def result(
    run: Run,
    status: str,
    reason: str | None,
    record: dict[str, Any],
    host: TrainingHost | None = None,
    model: nn.Module | None = None,
    program: Training | None = None,
    twin: dict[str, Any] | None = None,
    personal: dict[str, Any] | None = None,
    real: bool = False,
) -> dict[str, Any]:
    """The summary of a run. `final` is its last round, `best` the one chosen on validation data.

    record: the training's own of the last round, which may hold a confusion matrix. real: sites
    keep their own books, so that what they spent is not known here.
    """
    plan, history = run.plan, run.history
    last = history[-1] if history else {}
    return {
        "status": status,
        "reason": reason,
        "name": plan.name,
        "recipe": plan.recipe,
        "seed": plan.seed,
        "rounds": last.get("round", 0),
        "planned_rounds": plan.rounds,
        "final": last or None,
        "best": _best(run, history),
        "bytes_down": last.get("bytes_down", 0),
        "bytes_up": last.get("bytes_up", 0),
        "seconds": last.get("seconds", 0.0),
        "parameters": None if model is None else share(model).parameters,
        "trainable": None if model is None else share(model).trained,
        "model": plan.model.name,
        "source": None if program is None else program.space.frozen.installed,
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
        "simulated": not real,
        "privacy": None
        if program is None or real
        else spent(
            program,
            run.folder,
            last.get("round", 0),
            personal is not None,
            None if plan.personalise is None else plan.personalise.release,
        ),
        "twin": twin,
        "personal": personal,
    }


def _confusion(record: dict[str, Any]) -> list[list[int]] | None:
    """On test data, at the coordinator or summed over sites; else on validation data."""
    splits = ("test", "sites_test", "validation", "sites_validation")
    found = (record[split].get("confusion") for split in splits if split in record)
    return next((matrix for matrix in found if matrix), None)


def _best(run: Run, history: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The evaluated round that is best on validation data; test data choose nothing."""
    from cupola.learn.training import LOWER_IS_BETTER

    metric = run.plan.evaluation.metric
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
