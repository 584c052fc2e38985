"""Groups found from noised sparsity vectors against epsilon, as a picture.

    python experiments/pfa-release/curve.py FOLDER OUT.png

FOLDER is what `cupola reproduce pfa-release` filled. Lines are means over seeds, bands go from the
lowest to the highest.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLOURS = ("#0b6cb8", "#d55e00", "#a87900", "#008a66")


def draw(folder: Path, path: Path) -> None:
    columns: dict[str, list[Path]] = {}
    for run in json.loads((folder / "runs.json").read_text()):
        columns.setdefault(run["group"].split(" · ")[1], []).append(folder / run["folder"])
    figure = Figure(figsize=(7.2, 4), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    for (name, runs), colour in zip(columns.items(), COLOURS):
        told = [json.loads((run / "personal.json").read_text())["groups"]["curve"] for run in runs]
        epsilon = [point["epsilon"] for point in told[0]]
        index = np.array([[point["ari"] for point in curve] for curve in told])
        axis.plot(epsilon, index.mean(axis=0), color=colour, marker="o", ms=3, label=name)
        axis.fill_between(
            epsilon, index.min(axis=0), index.max(axis=0), color=colour, alpha=0.15, lw=0
        )
    axis.set_xscale("log", base=2)
    axis.set_xticks(epsilon, [f"{e:g}" for e in epsilon])
    axis.set_xlabel("epsilon of a site's vector")
    axis.set_ylabel("adjusted Rand index")
    axis.grid(color="#e4e8ed")
    axis.legend(frameon=False)
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw(Path(sys.argv[1]), Path(sys.argv[2]))
