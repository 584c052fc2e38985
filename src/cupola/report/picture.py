"""A picture for a README or a paper: utility against megabytes, one line per recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupola.base.formatting import LOWER_IS_BETTER, SHARES, mean_spread, metric, metric_unit, title
from cupola.errors import DataError
from cupola.pages.folder import SPLITS, find_runs
from cupola.report.groups import common_metric, group

_COLOURS = ("#0b6cb8", "#d55e00", "#008a66", "#b5508f", "#a87900", "#1d9bd1", "#5a4fcf", "#5b6672")
_INK, _SOFT = "#16202c", "#5a6776"


def overview_picture(
    folders: Sequence[Path | str], path: Path | str, heading: str | None = None
) -> Path:
    """Draw the best level reached for the bytes sent into a .png or .svg.

    Runs with all data at one site are a level to compare with, not a curve.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogLocator, NullLocator

    path = Path(path)
    if path.suffix not in (".png", ".svg"):
        raise DataError(f"{path}: the picture's name must end in .png or .svg")
    runs = [run for folder in folders for run in find_runs(folder)]
    groups, measured = group(runs), common_metric(runs)
    unit = metric_unit(measured)
    figure = Figure(figsize=(9.6, 4.8), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    drawn: list[tuple[float, str, str, Any]] = []  # at the end, name, colour, style
    costs = [v for g in groups if not g.central for v in g.reached(measured)[0] if v > 0]
    for i, g in enumerate(groups):
        x, y = g.reached(measured)
        if not x or (not costs and g.central):
            continue
        end = mean_spread(g.finals(measured))[0] or 0.0
        colour = _COLOURS[i % len(_COLOURS)]
        level = [v / unit.scale for v in y]
        style = "-" if i < len(_COLOURS) else "--"
        if g.central:  # nothing is sent to learn at one place: a level to compare with
            style = ":"
            axes.axhline(end / unit.scale, color=colour, linestyle=style, linewidth=2)
        else:
            mega = [v / 1e6 for v in x]
            axes.step(mega, level, style, where="post", color=colour, linewidth=2)
            axes.plot(mega[-1:], level[-1:], "o", color=colour, markersize=5)
        drawn.append((end, g.label, colour, style))
    if not drawn or not max(costs, default=0):
        raise DataError("nothing was measured in these runs; there is nothing to draw")
    if max(costs) > 8 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda v, _: f"{v:g}")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
    else:
        axes.set_xlim(left=0)
    best_first = sorted(drawn, reverse=measured not in LOWER_IS_BETTER)
    figure.legend(
        [Line2D([], [], color=c, linestyle=s, linewidth=2.4) for _, _, c, s in best_first],
        [f"{name.replace('$', chr(92) + '$')}  {metric(measured, level)}"
         for level, name, _, _ in best_first],
        loc="outside right center", frameon=False, labelcolor=_INK, fontsize=10.5,
        labelspacing=0.9, title="at the end", alignment="left",
    )  # fmt: skip
    split = SPLITS.get(runs[0].split or "", "held-out data")
    name = f"{title(measured)} on {split}" + (" (%)" if measured in SHARES else "")
    axes.set_title(heading or f"{name} reached for the megabytes sent", loc="left", color=_INK,
                   fontsize=13, fontweight="bold", pad=12)  # fmt: skip
    axes.set_xlabel("MB sent, all sites, both directions", color=_SOFT)
    axes.set_ylabel(name, color=_SOFT)
    axes.grid(color="#e9ecf0", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(which="both", colors=_SOFT, length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color("#c5ccd4")
    path.parent.mkdir(parents=True, exist_ok=True)
    with rc_context({"svg.hashsalt": "cupola"}):
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=160, metadata=metadata)
    return path
