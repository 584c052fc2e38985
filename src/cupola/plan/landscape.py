"""The loss around a finished run's model, kept in its folder for the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from cupola.errors import DataError
from cupola.nn.landscape import landscape
from cupola.plan.compose import federated_data, problem
from cupola.plan.folder import Run

SAMPLES, POINTS = 500, 11


def write_landscape(folder: Path | str, *, samples: int = SAMPLES, points: int = POINTS) -> Path:
    """Make landscape.json: mean loss of test samples at places around the run's model.

    The places are those of `cupola.nn.landscape`, on points x points steps. Samples: the first of
    the coordinator's test data, or else of the sites' own.
    """
    run = Run.open(folder)
    data = federated_data(run.plan)
    held = data.public.get("test")
    if held is None or not len(held):
        sites = (data.site(i).test for i in range(len(data)))
        held = next((d for d in sites if len(d)), None)
    if held is None:
        raise DataError(f"{run.folder}: no test data to show the loss of")
    made, chosen = problem(run.plan, data), slice(0, samples)
    x, y = held.inputs(chosen), held.y[chosen]
    x = x.to(made.dtype) if x.is_floating_point() else x
    steps, losses = landscape(run.model(), made.loss, x, y, seed=run.plan.seed, points=points)
    # A loss that is not a number, far away, is as large as any.
    most = losses[np.isfinite(losses)].max(initial=0.0)
    losses = np.nan_to_num(losses, nan=most, posinf=most, neginf=most)
    path = run.folder / "landscape.json"
    found = {"steps": steps.tolist(), "losses": losses.tolist(), "samples": len(x)}
    path.write_text(json.dumps(found), "utf-8")
    return path
