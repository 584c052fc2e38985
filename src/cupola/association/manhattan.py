"""Manhattan and QQ plots: every hit, and of the rest no more dots than can be seen."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from cupola.association.texts import Texts
from cupola.base.formatting import PLAIN, text
from cupola.pages.charts import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Scale,
    _drawings,
    _svg,
    _y_grid,
    ticks,
)

_NAMES = {23: "X", 24: "Y", 25: "XY", 26: "MT"}
_GRID = 2.0  # pixels: dots closer than this are one
_LABELLED = 200  # dots with a name to hover
_FINEST = 2400  # pixels across, wider than any drawing


def manhattan(
    chromosome: np.ndarray,
    position: np.ndarray,
    y: np.ndarray,
    names: Sequence[str] | np.ndarray | Texts,
    thresholds: Sequence[float],
) -> str:
    """-log10 p along the genome, chromosomes in two colours."""
    order, spot = _along_the_genome(chromosome, position), position
    chromosome, position, y = chromosome[order], position[order].astype(float), y[order]
    place, middles, start = np.zeros(len(y)), [], 0.0
    ends = [*(np.flatnonzero(np.diff(chromosome)) + 1).tolist(), len(y)]
    for at in (slice(a, b) for a, b in itertools.pairwise([0, *ends])):
        low, high = position[at.start], position[at.stop - 1]
        place[at] = start + position[at] - low
        middles.append((int(chromosome[at.start]), start + (high - low) / 2, max(high - low, 1.0)))
        start += (high - low) * 1.0 + max(1.0, 5e6)
    top = max(float(y.max()), *(-np.log10(t) for t in thresholds)) * 1.05
    best = largest(y, _LABELLED)
    # Once for all widths: what cannot be told apart in the widest drawing is one dot in any.
    shown = np.union1d(_first_in_cells(place * (_FINEST / max(start, 1.0)), y * (600 / top)), best)
    labelled = set(np.searchsorted(shown, best).tolist())
    chromosome, place, y, order = chromosome[shown], place[shown], y[shown], order[shown]

    def draw(width: int) -> str:
        height = 300
        sx = Scale(0.0, max(start, 1.0), LEFT, width - RIGHT)
        sy = Scale(0.0, top, height - BOTTOM, TOP)
        axis = Axis("-log10 p", PLAIN)
        parts = [_y_grid(sy, ticks(0.0, top, PLAIN, 6), axis, height, width)]
        colour = {c: i % 2 for i, (c, _, _) in enumerate(middles)}
        last = -100.0
        for c, middle, _ in middles:
            if sx(middle) - last > 15:
                name = text(_NAMES.get(c, c))
                last = sx(middle)
                parts.append(f'<text class="tick mid" x="{last}" y="{height - 25}">{name}</text>')
        parts += [
            f'<path class="line dashed s{3 + i}" d="M{LEFT} {sy(-np.log10(t))}H{width - RIGHT}"/>'
            for i, t in enumerate(thresholds)
        ]
        px = LEFT + place / max(start, 1.0) * (width - RIGHT - LEFT)
        py = height - BOTTOM - y / top * (height - BOTTOM - TOP)
        seen = _first_in_cells(px, py)
        shape = ["", ""]
        for i in seen.tolist():
            if i not in labelled:
                shape[colour[int(chromosome[i])]] += f"M{px[i]:.1f} {py[i]:.1f}h0"
        for i, path in enumerate(shape):
            parts.append(
                f'<path class="s{2 * i}" style="stroke-width:2.6;stroke-linecap:round" d="{path}"/>'
            )
        for i in sorted(labelled):
            where = f"{_NAMES.get(int(chromosome[i]), int(chromosome[i]))}:{int(spot[order[i]]):,}"
            tip = f"{names[order[i]]}: {where}, -log10 p {y[i]:.2f}"
            parts.append(
                f'<circle class="f{2 * colour[int(chromosome[i])]}" cx="{px[i]:.1f}" '
                f'cy="{py[i]:.1f}" r="2"><title>{text(tip)}</title></circle>'
            )
        turn = f"translate(11 {(TOP + height - BOTTOM) / 2}) rotate(-90)"
        parts.append(
            f'<text class="axis mid" x="{(LEFT + width - RIGHT) / 2}" y="{height - 7}">'
            f'chromosome</text><text class="axis mid" transform="{turn}">-log10 p</text>'
        )
        return _svg("".join(parts), height, "p-values along the genome", "", width)

    return _drawings(draw, wide=True)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Where the largest values are, from large to small, equal ones in their order; none is NaN."""
    if count < len(values):
        least = np.partition(values, len(values) - count)[len(values) - count]
        above, equal = np.flatnonzero(values > least), np.flatnonzero(values == least)
        chosen = np.sort(np.concatenate([above, equal[: count - len(above)]]))
    else:
        chosen = np.arange(len(values))
    return chosen[np.argsort(-values[chosen], kind="stable")]


def _along_the_genome(chromosome: np.ndarray, position: np.ndarray) -> np.ndarray:
    """The order of variants by chromosome and position, which is mostly the one they have."""
    same = chromosome[1:] == chromosome[:-1]
    sorted_ = (chromosome[1:] >= chromosome[:-1]) & ~(same & (position[1:] < position[:-1]))
    return np.arange(len(position)) if sorted_.all() else np.lexsort((position, chromosome))


def _first_in_cells(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The first dot in every cell of a grid, from left to right; x and y in pixels, from 0 on."""
    across, down = ((v // _GRID).astype(np.int64) for v in (x, y))
    cell = across * (int(down.max()) + 1) + down
    first = np.full(int(cell.max()) + 1, -1)
    first[cell[::-1]] = np.arange(len(cell))[::-1]
    return first[first >= 0]


def quantiles(y: np.ndarray, names: Any = None) -> str:
    """Observed against expected -log10 p, with the 95 % band of the null hypothesis. names: the
    largest are told where the pointer is."""
    from scipy.special import betaincinv

    seen = np.sort(y)[::-1]
    m = len(seen)
    rank = np.unique(
        np.concatenate([np.arange(min(m, 300)), np.geomspace(1, m, 300).astype(int) - 1])
    )
    expected = -np.log10((rank + 0.5) / m)
    low, high = (-np.log10(betaincinv(rank + 1.0, m - rank, q)) for q in (0.975, 0.025))
    most_x, most_y = float(expected.max()) * 1.05, float(max(seen[0], expected.max())) * 1.05
    height = 300
    sx = Scale(0.0, max(most_x, 0.1), LEFT, WIDTH - RIGHT)
    sy = Scale(0.0, max(most_y, 0.1), height - BOTTOM, TOP)
    band = [(sx(a), sy(min(b, most_y))) for a, b in zip(expected, high)]
    band += [(sx(a), sy(b)) for a, b in zip(expected[::-1], low[::-1])]
    corner = min(most_x, most_y)
    parts = [
        _y_grid(sy, ticks(0.0, most_y, PLAIN, 6), Axis("observed"), height, WIDTH),
        '<path class="band f7" d="M' + "L".join(f"{a} {b}" for a, b in band) + 'Z"/>',
        f'<path class="line s7 dashed" d="M{sx(0)} {sy(0)}L{sx(corner)} {sy(corner)}"/>',
    ]
    for v in ticks(0.0, most_x, PLAIN, 6):
        parts.append(
            f'<text class="tick mid" x="{sx(v)}" y="{height - 25}">{PLAIN.label(v)}</text>'
        )
    best: list[int] = largest(y, _LABELLED).tolist() if names is not None else []
    tips = [f"{names[i]}: {y[i]:.2f}, expected {{}}" for i in best] if names is not None else []
    for place, a, b in zip(rank.tolist(), expected, seen[rank]):
        tip = text(tips[place].format(f"{a:.2f}")) if place < len(tips) else ""
        inside = f"<title>{tip}</title>" if tip else ""
        parts.append(f'<circle class="f0" cx="{sx(a)}" cy="{sy(b)}" r="2">{inside}</circle>')
    turn = f"translate(11 {(TOP + height - BOTTOM) / 2}) rotate(-90)"
    parts.append(
        f'<text class="axis mid" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{height - 7}">expected '
        f'-log10 p</text><text class="axis mid" transform="{turn}">observed -log10 p</text>'
    )
    return (
        f'<div class="chart">{_svg("".join(parts), height, "observed and expected p-values")}</div>'
    )
