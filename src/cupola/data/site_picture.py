"""Who holds what: a picture of the classes at each site."""

from __future__ import annotations

import io
from typing import Literal

import numpy as np

from cupola.data.dataset import FederatedData

MOST_SITES = 60  # shown; the others are summarised
_CHEAP = 2_000_000  # sites whose sizes are worth listing for the summary


def holdings(data: FederatedData, sites: int = MOST_SITES) -> np.ndarray:
    """Training samples of each class (rows) at the first sites (columns), int64.

    One row in all where there are no classes of whole samples (regression, language, segmentation).
    """
    shown = min(sites, len(data))
    if data.kind != "classification" or data.classes is None:
        return data.sizes(np.arange(shown))[None]
    table = np.zeros((data.classes, shown), np.int64)
    for i in range(shown):
        table[:, i] = np.bincount(data.site(i).train.y.numpy(), minlength=data.classes)
    return table


def picture(
    data: FederatedData,
    format: Literal["png", "svg"] = "png",
    sites: int = MOST_SITES,
    title: str | None = None,
) -> bytes:
    """Sites from left to right, classes as stacked bars (dots if there are more than 20).

    Needs no display. The same data gives the same bytes.
    """
    import matplotlib  # slow to load, and most processes draw nothing
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    table = holdings(data, sites)
    classes, shown = table.shape
    figure = Figure(figsize=(min(4 + 0.12 * shown, 11), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    place = np.arange(shown)
    if classes > 20:
        dots = np.argwhere(table > 0)
        most = max(int(table.max(initial=0)), 1)
        area = 4 + 60 * table[dots[:, 0], dots[:, 1]] / most
        axes.scatter(dots[:, 1], dots[:, 0], s=area, alpha=0.7, linewidths=0)
        axes.set_ylabel("class (dot: samples)")
    else:
        colours = matplotlib.colormaps["tab20" if classes > 10 else "tab10"]
        top = np.cumsum(table, axis=0)
        for c in range(classes):
            name = data.class_names[c] if data.class_names and classes > 1 else str(c)
            bars = _bars(place, top[c] - table[c], top[c])
            # One collection for all sites: hundreds of single bars would take seconds.
            axes.add_collection(PolyCollection(bars, facecolors=[colours(c)], label=name))
        axes.set_ylim(0, 1.05 * max(int(top[-1].max(initial=0)), 1) if classes else 1)
        axes.set_ylabel("training samples")
        if classes > 1:
            figure.legend(loc="outside right center", fontsize="small", frameon=False)
    axes.set_xlim(-0.7, shown - 0.3)
    if shown <= 12:
        names = [data.site_name(i) for i in range(shown)]
        axes.set_xticks(place, names, rotation=30 if max(map(len, names)) > 6 else 0)
    else:
        axes.set_xlabel("site")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(title or f"{data.name}: who holds what", loc="left")
    rest = summary(data, shown)
    if rest:
        figure.supxlabel(rest, fontsize="small", color="0.4")
    out = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "cupola"}):
        figure.savefig(
            out, format=format, dpi=120, metadata={"Date": None} if format == "svg" else None
        )
    return out.getvalue()


def _bars(place: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[np.ndarray]:
    """Corners of the bar at each place, shape (4, 2)."""
    left, right = place - 0.42, place + 0.42
    corners = [(left, low), (left, high), (right, high), (right, low)]
    return list(np.stack([np.stack(corner, -1) for corner in corners], 1))


def summary(data: FederatedData, shown: int) -> str:
    """A line about the sites that are not shown; empty if there are none."""
    rest = len(data) - shown
    if rest <= 0:
        return ""
    line = f"and {rest:,} more site{'s' if rest > 1 else ''}"
    if not data.knows_sizes or len(data) > _CHEAP:
        return line
    sizes = data.sizes(np.arange(shown, len(data)))
    low, middle, high = (int(v) for v in np.percentile(sizes, [0, 50, 100]))
    empty = int((sizes == 0).sum())
    line += f" with {low:,} to {high:,} samples, median {middle:,}"
    return line + (f"; {empty:,} of them empty" if empty else "")
