"""Regional plots: -log10 p around a hit, coloured by linkage with it where that is known."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cupola.association.compare import GENOME_WIDE, Table
from cupola.base.formatting import PLAIN, text
from cupola.pages.charts import BOTTOM, LEFT, RIGHT, TOP, WIDTH, Axis, Scale, _svg, _y_grid, ticks

LINKED = ".clumped.ld.tsv"
MOST = 6  # regions in a report
_SUGGESTIVE = 1e-5  # without clumps, a hit has p below this
_AROUND = 250_000  # bases on either side
_EDGES = (0.2, 0.4, 0.6, 0.8)
# From unlinked to linked; readable on light and dark pages.
_COLOURS = ("#4a74b4", "#3fa7c4", "#4fa65a", "#e09a2b", "#d0463c")
_HIT, _UNKNOWN = "#8e44ad", "#9a9a9a"
_DOTS = 2500  # of a region: weaker ones beyond are left out
_NAMED = 60  # with a text to hover


@dataclass(frozen=True)
class Region:
    """hit: a row of the table. r2: of other variants with it, by name; empty if not asked for."""

    hit: int
    r2: Mapping[str, float] = field(default_factory=dict)


def regions(table: Table, linkage: Path | None) -> list[Region]:
    """The best hits: clumps where the study made them, else variants far from better ones."""
    if linkage is not None and linkage.is_file():
        return _of_clumps(table, linkage)
    score = np.where(np.isfinite(table.log10_p), table.log10_p, 0.0)
    found: list[Region] = []
    for i in np.argsort(score, kind="stable").tolist():
        if len(found) == MOST or score[i] > np.log10(_SUGGESTIVE):
            break
        apart = all(
            table.chromosome[i] != table.chromosome[r.hit]
            or abs(int(table.position[i]) - int(table.position[r.hit])) > _AROUND
            for r in found
        )
        found += [Region(i)] if apart else []
    return found


def _of_clumps(table: Table, linkage: Path) -> list[Region]:
    """Clumps stand in the table of PLINK's columns, the best first; r^2 beside it."""
    clumped = linkage.with_name(linkage.name.removesuffix(".ld.tsv"))
    r2: dict[str, dict[str, float]] = {}
    with linkage.open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            r2.setdefault(row["INDEX"], {})[row["SNP"]] = float(row["R2"])
    with clumped.open(encoding="utf-8") as file:
        names = [row["SNP"] for row in csv.DictReader(file, delimiter="\t")][:MOST]
    row_of = {name: i for i, name in enumerate(table.name.tolist()) if name in set(names)}
    return [Region(row_of[name], r2.get(name, {})) for name in names if name in row_of]


def draw(table: Table, region: Region) -> str:
    """One region as SVG, as wide as a phone."""
    hit, height = region.hit, 250
    centre = int(table.position[hit])
    near = (table.chromosome == table.chromosome[hit]) & np.isfinite(table.log10_p)
    near &= np.abs(table.position - centre) <= _AROUND
    rows = np.flatnonzero(near)
    rows = rows[np.argsort(table.log10_p[rows], kind="stable")][:_DOTS]
    y = -table.log10_p
    top = max(float(y[rows].max()), 1.0) * 1.12
    sx = Scale((centre - _AROUND) / 1e6, (centre + _AROUND) / 1e6, LEFT, WIDTH - RIGHT)
    sy = Scale(0.0, top, height - BOTTOM, TOP)
    parts = [_y_grid(sy, ticks(0.0, top, PLAIN, 5), Axis("-log10 p", PLAIN), height, WIDTH)]
    for step in range(-2, 3):
        at = (centre + step * _AROUND / 2) / 1e6
        if at < 0:
            continue
        end = ("mid", "mid", "end")[max(0, step)]
        parts.append(f'<text class="tick {end}" x="{sx(at)}" y="{height - 25}">{at:.2f}</text>')
    if top > -np.log10(GENOME_WIDE):
        line = sy(-np.log10(GENOME_WIDE))
        parts.append(f'<path class="line dashed s3" d="M{LEFT} {line}H{WIDTH - RIGHT}"/>')
    named = set(rows[:_NAMED].tolist())
    for i in rows[::-1].tolist():  # the best on top
        if i != hit:
            parts.append(_dot(table, region, i, sx, sy, i in named))
    x, up = sx(centre / 1e6), sy(float(y[hit]))
    parts.append(
        f'<path d="M{x} {up - 6}l6 6l-6 6l-6 -6z" fill="{_HIT}">'
        f"<title>{text(_tip(table, region, hit))}</title></path>"
    )
    turn = f"translate(11 {(TOP + height - BOTTOM) / 2}) rotate(-90)"
    parts.append(
        f'<text class="axis mid" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 7}">megabases on '
        f'chromosome {_chromosome(table, hit)}</text><text class="axis mid" transform="{turn}">'
        "-log10 p</text>"
    )
    what = f"p-values around {table.name[hit]}"
    return f'<div class="chart">{_svg("".join(parts), height, what)}</div>'


def _dot(table: Table, region: Region, i: int, sx: Scale, sy: Scale, named: bool) -> str:
    r2 = region.r2.get(table.name[i])
    colour = _UNKNOWN if r2 is None else _COLOURS[int(np.searchsorted(_EDGES, r2, "right"))]
    place = f'cx="{sx(int(table.position[i]) / 1e6)}" cy="{sy(float(-table.log10_p[i]))}"'
    tip = f"<title>{text(_tip(table, region, i))}</title>" if named else ""
    return f'<circle {place} r="{3 if r2 is not None else 2.2}" fill="{colour}">{tip}</circle>'


def _tip(table: Table, region: Region, i: int) -> str:
    r2 = region.r2.get(table.name[i])
    more = "" if r2 is None else f", r² {r2:.2f}"
    place = f"{_chromosome(table, i)}:{int(table.position[i]):,}"
    return f"{table.name[i]}, {place}, -log10 p {-table.log10_p[i]:.2f}{more}"


def _chromosome(table: Table, i: int) -> str:
    number = int(table.chromosome[i])
    return {23: "X", 24: "Y", 25: "XY", 26: "MT"}.get(number, str(number))


def legend() -> str:
    """What colours mean, for reports with clumps."""
    words = ["below 0.2", "0.2", "0.4", "0.6", "0.8 and more"]
    keys = [("hit", _HIT), *zip(words, _COLOURS), ("not known", _UNKNOWN)]
    spans = "".join(
        f'<span style="display:inline-block;margin-right:1em"><span style="color:{colour}">●</span>'
        f" {text(name)}</span>"
        for name, colour in keys
    )
    return f'<p class="note">r² with the hit: {spans}</p>'
