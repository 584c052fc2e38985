"""Loss and accuracy of a reproduced table's rows, for the docs.

    python experiments/reproduce/curves.py FOLDER images/NAME.png [ROW ...]

FOLDER is what `cupola reproduce` filled. On the left by iteration, on the right by rounds in which
sites worked. Lines are means over seeds, bands go from the lowest to the highest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

COLOURS = ("#5b6672", "#0b6cb8", "#d55e00", "#1d9bd1", "#a87900", "#008a66")


def evaluated(folder: Path) -> Iterator[tuple[int, int, float, float]]:
    """(iteration, rounds in which sites worked, loss, accuracy in %) at every evaluation."""
    worked = 0
    for line in (folder / "history.jsonl").read_text().splitlines():
        record = json.loads(line)
        worked += "upcycled" not in record
        tested = record.get("test") or record.get("sites_test")
        if tested:
            loss = (record.get("sites_train") or tested)["loss"]
            yield record["round"], worked, loss, 100 * tested["accuracy"]


def draw(folder: Path, path: Path, rows: list[str]) -> None:
    groups: dict[str, list[Path]] = {}
    for run in json.loads((folder / "runs.json").read_text()):
        groups.setdefault(run["group"].split(" · ")[0], []).append(folder / run["folder"])
    figure = Figure(figsize=(9.6, 6), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 2, sharex="col", sharey="row")
    for name, colour in zip(rows or list(groups), COLOURS):
        curves = np.array([list(evaluated(run)) for run in groups[name]])  # seed, time, 4
        for column in (0, 1):
            for row, measure in ((0, 3), (1, 2)):
                x, y = curves[0, :, column], curves[:, :, measure]
                axes[row, column].plot(x, y.mean(axis=0), color=colour, label=name)
                axes[row, column].fill_between(
                    x, y.min(axis=0), y.max(axis=0), color=colour, alpha=0.15, lw=0
                )
    axes[0, 0].set_ylabel("test accuracy, %")
    axes[1, 0].set_ylabel("loss")
    axes[1, 0].set_yscale("log")
    for formatter in (axes[1, 0].yaxis.set_major_formatter, axes[1, 0].yaxis.set_minor_formatter):
        formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes[1, 0].set_xlabel("iteration")
    axes[1, 1].set_xlabel("rounds in which sites worked (equal site time)")
    for one in axes.flat:
        one.grid(color="#e4e8ed")
        one.spines[["top", "right"]].set_visible(False)
    axes[0, 1].legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
