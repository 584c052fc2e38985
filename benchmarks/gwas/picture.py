"""A picture of the curves: processor seconds and megabytes against variants, people and cohorts.

    python benchmarks/gwas/run.py --data FOLDER --tests chi-square,linear,logistic --curves > a.json
    python benchmarks/gwas/picture.py a.json [b.json ...] --out docs/images/gwas-curves.png

Also prints the table of the documentation.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

AXES = ("variants", "people", "cohorts")
COLOURS = {"chi-square": "#2a6f97", "linear": "#bc6c25", "logistic": "#6a4c93"}


def series(rows: list[dict[str, Any]], axis: str, test: str) -> list[dict[str, Any]]:
    """The most points of a test along one axis that have all else in common."""
    lines: dict[tuple[int, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row["test"] == test:
            lines.setdefault(tuple(row[n] for n in AXES if n != axis), []).append(row)
    return sorted(max(lines.values(), key=len), key=lambda r: r[axis])


def draw(rows: list[dict[str, Any]], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, len(AXES), figsize=(10, 5.2), sharey="row")
    for j, axis in enumerate(AXES):
        for test, colour in COLOURS.items():
            points = series(rows, axis, test)
            x = [p[axis] for p in points]
            style = {"color": colour, "marker": "o", "markersize": 4, "label": test}
            panels[0, j].plot(x, [p["cpu"] for p in points], **style)
            sent = [p["test_mb"] + p["agreement_mb"] for p in points]
            panels[1, j].plot(x, sent, **style)
        panels[1, j].set_xlabel(axis)
        panels[1, j].set_yscale("log")
        for panel in panels[:, j]:
            panel.set_xticks(x, [f"{value:,}" for value in x])
            panel.grid(alpha=0.3)
            panel.spines[["top", "right"]].set_visible(False)
    panels[0, 0].set_ylim(bottom=0)
    panels[0, 0].set_ylabel("processor seconds")
    panels[1, 0].set_ylabel("megabytes sent")
    panels[0, 0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(out, dpi=110)


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| people | variants | cohorts | test | seconds | MB | MiB |", "| --- " * 7 + "|"]
    for r in rows:
        sent = r["test_mb"] + r["agreement_mb"]
        lines.append(
            f"| {r['people']:,} | {r['variants']:,} | {r['cohorts']} | {r['test']} "
            f"| {r['cpu']:.1f} | {sent:.1f} | {r['peak_mib']:.0f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    rows = [r for path in options.results for r in json.loads(path.read_text())["curves"]]
    draw(rows, options.out)
    print(table(rows))


if __name__ == "__main__":
    main()
