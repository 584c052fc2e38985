"""The trained border of a reprogrammed model, as a picture for the report."""

from __future__ import annotations

import numpy as np
from safetensors import SafetensorError, safe_open

from cupola.pages import page
from cupola.pages.folder import RunFolder

CELLS = 64  # a side: a picture of all pixels would be larger than the rest of the report
SIDE = 320  # in the page's pixels


def border_section(run: RunFolder) -> str:
    """What is around every input, red, green and blue by -1 (none) to 1 (full); empty where nothing
    of the kind was trained."""
    theta = _theta(run)
    if theta is None:
        return ""
    colours = 0.5 + 0.5 * np.tanh(_coarse(theta))
    used = _coarse(_border(run, theta.shape[-1])[None])[0] > 0.5
    cell = SIDE / colours.shape[-1]
    parts = [
        f'<rect x="{x * cell:.2f}" y="{y * cell:.2f}" width="{cell:.2f}" height="{cell:.2f}" '
        f'fill="rgb({",".join(str(int(255 * c)) for c in colours[:, y, x])})"/>'
        for y, x in np.argwhere(used)
    ]
    chart = (
        f'<svg viewBox="0 0 {SIDE} {SIDE}" width="{SIDE}" role="img" '
        f'aria-label="the trained border">{"".join(parts)}</svg>'
    )
    lead = (
        "What was learnt to stand around every input; the input itself is in the empty middle. "
        "Grey is nothing. Without privacy it may carry traces of the data."
    )
    return page.section("The trained border", lead, page.figure("Border", chart))


def _theta(run: RunFolder) -> np.ndarray | None:
    """(3, size, size), of 1 channel expanded; None where there is none that can be read."""
    path = run.path / "model.safetensors"
    try:
        with safe_open(path, "np") as file:
            if "border.theta" not in file.keys():  # noqa: SIM118 (no mapping)
                return None
            theta = np.asarray(file.get_tensor("border.theta"), np.float64)
    except (OSError, SafetensorError, TypeError, ValueError):
        return None
    square = theta.ndim == 3 and theta.shape[1] == theta.shape[2] and theta.shape[0] in (1, 3)
    if not square or not theta.size or not np.isfinite(theta).all():
        return None
    return np.broadcast_to(theta, (3, *theta.shape[1:]))


def _border(run: RunFolder, size: int) -> np.ndarray:
    """1 on the border, 0 where the input is, as the plan's `model.inner` says."""
    model = run.plan.get("model")
    given = model.get("inner") if isinstance(model, dict) else None
    usual = round(200 / 224 * size)
    inner = given if isinstance(given, int) and 0 < given < size else usual
    before, mask = (size - inner + 1) // 2, np.ones((size, size))
    mask[before : before + inner, before : before + inner] = 0
    return mask


def _coarse(values: np.ndarray) -> np.ndarray:
    """(c, size, size) by the nearest of at most CELLS places a side."""
    size = values.shape[-1]
    cells = min(size, CELLS)
    place = ((np.arange(cells) + 0.5) * size / cells).astype(int)
    return values[:, place][:, :, place]
