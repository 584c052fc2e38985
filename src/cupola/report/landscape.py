"""The loss around the trained model, where `cupola report --landscape` measured it."""

from __future__ import annotations

import json

import numpy as np

from cupola.base.formatting import number
from cupola.report import charts, page
from cupola.report.charts import Axis, Line
from cupola.report.folder import RunFolder


def landscape_section(run: RunFolder) -> str:
    """A map of the loss on a plane through the model, and a cut through its middle."""
    path = run.path / "landscape.json"
    if not path.is_file():
        return ""
    try:
        held = json.loads(path.read_text("utf-8"))
        steps, losses = np.asarray(held["steps"], float), np.asarray(held["losses"], float)
        samples = int(held["samples"])
    except (ValueError, KeyError, TypeError):
        return ""
    if losses.shape != (len(steps), len(steps)) or not len(steps):
        return ""
    names = [f"{s:.1f}" for s in steps]
    least, most = float(losses.min()), float(losses.max())
    chart = charts.heat(
        losses[::-1], names[::-1], names, "first direction", "second direction",
        "loss around the model", square=True, low=least,
    )  # fmt: skip
    middle = len(steps) // 2
    cuts = [
        Line("first direction", steps.tolist(), losses[:, middle].tolist()),
        Line("second direction", steps.tolist(), losses[middle].tolist(), colour=1),
    ]
    cut = charts.lines(cuts, Axis("step"), Axis("loss"), "loss along both directions")
    lead = (
        f"Mean loss of {number(samples)} test samples on a plane through the trained weights (in "
        "the middle), along two random directions whose filters are as long as the model's own: a "
        "step of 1 is as long as the weights themselves. The flatter, the less the loss depends on "
        "where exactly training ended. "
        f"Shades go from {number(least)} (lightest) to {number(most)}."
    )
    return page.section(
        "Loss landscape",
        lead,
        page.pair(page.figure("Around the model", chart), page.figure("Cuts", cut)),
    )
