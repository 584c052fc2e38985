"""A picture for a README or a paper: utility against megabytes, one line per recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cupola.errors import DataError
from cupola.report.folder import SPLITS, find_runs
from cupola.report.groups import common_metric, group
from cupola.report.words import SHARES, metric_unit, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0b6cb8", "#d55e00", "#008a66", "#b5508f", "#a87900", "#1d9bd1", "#5a4fcf", "#5b6672")
_INK, _SOFT = "#16202c", "#5a6776"


def overview_picture(
    folders: Sequence[Path | str], path: Path | str, heading: str | None = None
) -> Path:
    """Draw the runs of these folders into a .png or .svg; names stand at the ends of the lines."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise DataError(f"{path}: the picture's name must end in .png or .svg")
    runs = [run for folder in folders for run in find_runs(folder)]
    groups, measured = group(runs), common_metric(runs)
    unit = metric_unit(measured)
    figure = Figure(figsize=(9.6, 4.8), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    ends = []
    for i, g in enumerate(groups):
        x, y, spread = g.band(measured, "bytes")
        if not x:
            continue
        colour = _COLOURS[i % len(_COLOURS)]
        style = "-" if i < len(_COLOURS) else "--"
        mega, level = [v / 1e6 for v in x], [v / unit.scale for v in y]
        axes.plot(mega, level, style, color=colour, linewidth=2, solid_capstyle="round")
        axes.plot(mega[-1:], level[-1:], "o", color=colour, markersize=5)
        if spread is not None:
            low = [a - s / unit.scale for a, s in zip(level, spread)]
            high = [a + s / unit.scale for a, s in zip(level, spread)]
            axes.fill_between(mega, low, high, color=colour, alpha=0.14, linewidth=0)
        ends.append((level[-1], mega[-1], g.label, colour))
    if not ends:
        raise DataError("nothing was measured in these runs; there is nothing to draw")
    costs = [v for _, v, _, _ in ends]
    if max(costs) > 8 * min(costs) > 0:
        axes.set_xscale("log")
        axes.set_xlim(right=max(costs) * 2.2)
        axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
    else:
        axes.set_xlim(0, max(costs) * 1.13)
    split = SPLITS.get(runs[0].split or "", "held-out data")
    name = f"{title(measured)} on {split}" + (" (%)" if measured in SHARES else "")
    axes.set_title(heading or f"{name} for the megabytes sent", loc="left", color=_INK,
                   fontsize=13, fontweight="bold", pad=12)  # fmt: skip
    axes.set_xlabel("MB sent, all sites, both directions", color=_SOFT)
    axes.set_ylabel(name, color=_SOFT)
    axes.grid(color="#e9ecf0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=_SOFT, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c5ccd4")
    figure.canvas.draw()  # fixes the layout, which the names need
    _name_ends(axes, ends)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "cupola"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=160, metadata=metadata)
    return path


def _name_ends(axes: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write names beside the ends of the lines, moved apart where they would cover each other."""
    taken: list[tuple[float, float, float]] = []  # left, right, middle in points
    scale = 72 / axes.figure.dpi
    for level, cost, label, colour in sorted(ends, reverse=True):
        x, y = (v * scale for v in axes.transData.transform((cost, level)))
        left, right, place = x + 7, x + 9 + 7 * len(label), y
        while hit := [m for a, b, m in taken if a < right and left < b and abs(m - place) < 13]:
            place = min(hit) - 13.5
        taken.append((left, right, place))
        axes.annotate(
            label.replace("$", r"\$"), (cost, level), xytext=(8, place - y),
            textcoords="offset points", color=colour, fontsize=10.5, va="center",
            fontweight="bold", annotation_clip=False,
            bbox={"boxstyle": "round,pad=0.15", "fc": "white", "alpha": 0.75, "lw": 0},
        )  # fmt: skip
