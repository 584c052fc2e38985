"""The trained border of a reprogrammed model, as a picture for the report."""

from __future__ import annotations

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from cupola.base.formatting import number
from cupola.nn.trained_size import side_of
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
    size = theta.shape[-1]
    side = _side(run, size)
    used = _coarse(_border(size, side)[None])[0] > 0.5
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
        "What was learnt to stand around every input; the input itself is in the empty middle, "
        f"{number(side)} of {size} pixels wide. "
        "Grey is nothing. Without privacy it may carry traces of the data."
    )
    return page.section("The trained border", lead, page.figure("Border", chart))


def saved_array(run: RunFolder, name: str) -> np.ndarray | None:
    """An array of the saved model, in float64; None where there is none that can be read."""
    try:
        with safe_open(run.path / "model.safetensors", "np") as file:
            if name not in file.keys():  # noqa: SIM118 (no mapping)
                return None
            return np.asarray(file.get_tensor(name), np.float64)
    except (OSError, SafetensorError, TypeError, ValueError):
        return None


def _theta(run: RunFolder) -> np.ndarray | None:
    """(3, size, size), of 1 channel expanded; None where there is none that can be read."""
    theta = saved_array(run, "border.theta")
    if theta is None:
        return None
    square = theta.ndim == 3 and theta.shape[1] == theta.shape[2] and theta.shape[0] in (1, 3)
    if not square or not theta.size or not np.isfinite(theta).all():
        return None
    return np.broadcast_to(theta, (3, *theta.shape[1:]))


def _side(run: RunFolder, size: int) -> float:
    """Of the input, in pixels: as it was trained, or as the plan's `model.inner` says."""
    given = run.plan.get("model")
    model = given if isinstance(given, dict) else {}
    least, scale = model.get("least_inner"), saved_array(run, "place.scale")
    if scale is not None and scale.shape == (1,) and isinstance(least, int) and 0 < least < size:
        return float(side_of(torch.from_numpy(scale), least, size))
    inner = model.get("inner")
    return inner if isinstance(inner, int) and 0 < inner < size else round(200 / 224 * size)


def _border(size: int, side: float) -> np.ndarray:
    """How much of each pixel is border: 1, or 0 where the input is."""
    aside = 0.5 * (isinstance(side, int) and (size - side) % 2)  # no half pixels as the plan has it
    middle = np.abs(np.arange(size) + 0.5 - size / 2 - aside)
    cover = np.clip(side / 2 - middle + 0.5, 0, 1)
    return 1 - cover[:, None] * cover


def _coarse(values: np.ndarray) -> np.ndarray:
    """(c, size, size) by the nearest of at most CELLS places a side."""
    size = values.shape[-1]
    cells = min(size, CELLS)
    place = ((np.arange(cells) + 0.5) * size / cells).astype(int)
    return values[:, place][:, :, place]
