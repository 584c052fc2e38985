"""Charts as inline SVG: no library, no network, light and dark by style sheet.

Every chart is drawn for a width of 460 pixels, so that it can be read on a phone and stands two
abreast on a desk; a chart that stands alone (`wide`) has a second drawing for the desk. Names and
values are escaped here; hover data go into an attribute as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from cupola.base.formatting import PLAIN, Unit, number, text

WIDTH, DESK, LEFT, RIGHT, TOP, BOTTOM = 460, 940, 50, 14, 12, 40
COLOURS = 8  # in the style sheet: --c0 to --c7


@dataclass(frozen=True)
class Line:
    """A named curve, with a band of `spread` on both sides where given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    dashed: bool = False
    colour: int = 0
    steps: bool = False


@dataclass(frozen=True)
class Axis:
    """Title, unit and kind of an axis."""

    title: str
    unit: Unit = PLAIN
    log: bool = False
    zero: bool = False
    top: float | None = None

    @property
    def full_title(self) -> str:
        return f"{self.title} ({self.unit.name})" if self.unit.name else self.title


def lines(
    series: Sequence[Line], x: Axis, y: Axis, what: str, height: int = 270, wide: bool = False
) -> str:
    """Curves with hover. `what` is read out by screen readers."""
    series = [s for s in series if len(s.x)]
    if not series:
        return nothing("nothing was measured yet")
    drawn = _drawings(lambda width: _lines(series, x, y, what, height, width), wide)
    return drawn + (legend(series) if len(series) > 1 else "")


def _drawings(draw: Callable[[int], str], wide: bool) -> str:
    """One drawing, or one for the phone and one for the desk (the style sheet shows either)."""
    if not wide:
        return f'<div class="chart">{draw(WIDTH)}</div>'
    return f'<div class="chart phone">{draw(WIDTH)}</div><div class="chart desk">{draw(DESK)}</div>'


def _lines(series: Sequence[Line], x: Axis, y: Axis, what: str, height: int, width: int) -> str:
    xs = [v for s in series for v in s.x if not x.log or v > 0]
    bands = [(s.y, s.spread or [0.0] * len(s.y)) for s in series]
    ys = [m + sign * d for m_, d_ in bands for m, d in zip(m_, d_) for sign in (-1, 1)]
    x_low, x_high = (min(xs), max(xs)) if xs else (0.0, 1.0)
    if x.log and x_low == x_high:
        x_low, x_high = x_low / 2, x_high * 2
    elif not x.log:
        x_low, x_high = (0.0 if x.zero else x_low), (x_high if x_high > x_low else x_low + 1)
    y_low, y_high = span(ys, y.zero, y.top)
    sx = Scale(x_low, x_high, LEFT, width - RIGHT, x.log)
    sy = Scale(y_low, y_high, height - BOTTOM, TOP)
    marks = log_ticks(x_low, x_high, x.unit) if x.log else ticks(x_low, x_high, x.unit)
    parts = [_grid(sx, sy, marks, ticks(y_low, y_high, y.unit, 5), x, y, height)]
    hover = []
    for s in series:
        keep = [i for i in thin(len(s.x)) if not x.log or s.x[i] > 0]
        points = [(sx(s.x[i]), sy(s.y[i])) for i in keep]
        if s.spread is not None:
            up = [(sx(s.x[i]), sy(min(s.y[i] + s.spread[i], y_high))) for i in keep]
            down = [(sx(s.x[i]), sy(max(s.y[i] - s.spread[i], y_low))) for i in reversed(keep)]
            parts.append(f'<path class="band f{s.colour % COLOURS}" d="{_path(up + down)}Z"/>')
        dash = " dashed" if s.dashed or s.colour >= COLOURS else ""
        drawn = _steps(points) if s.steps else points
        parts.append(f'<path class="line s{s.colour % COLOURS}{dash}" d="{_path(drawn)}"/>')
        if len(points) == 1 or s.steps:
            end = points[-1]
            parts.append(
                f'<circle class="f{s.colour % COLOURS}" cx="{end[0]}" cy="{end[1]}" r="4"/>'
            )
        hover.append(
            {
                "n": s.name,
                "c": s.colour % COLOURS,
                "p": [
                    [*p, f"{s.x[i] / x.unit.scale:.5g}", f"{s.y[i] / y.unit.scale:.4g}"]
                    for p, i in zip(points, keep)
                ],
            }
        )
    data = {"x": x.title, "xu": x.unit.name, "yu": y.unit.name, "s": hover}
    packed = escape(json.dumps(data, separators=(",", ":")), quote=True)
    body = "".join(parts) + '<g class="hover"></g>'
    return _svg(body, height, what, f' data-lines="{packed}"', width)


def legend(series: Sequence[Line]) -> str:
    """Names with a stroke of their colour; a click hides or shows the curve."""
    keys = "".join(
        f'<button type="button" class="key" data-key="{i}" aria-pressed="true"><svg class="stroke" '
        f'viewBox="0 0 22 8" aria-hidden="true"><path class="line s{s.colour % COLOURS}'
        f'{" dashed" if s.dashed or s.colour >= COLOURS else ""}" d="M1 4H21"/></svg>'
        f"{text(s.name)}</button>"
        for i, s in enumerate(series)
    )
    return f'<div class="legend">{keys}</div>'


def bars(
    names: Sequence[str],
    stacks: Sequence[tuple[str, Sequence[float]]],
    y: Axis,
    x_title: str,
    what: str,
    height: int = 230,
    wide: bool = False,
) -> str:
    """Stacked bars, one per name; `stacks` are (series name, values)."""
    if not stacks or not len(names):
        return nothing("nothing to show")
    chart = _drawings(lambda width: _bars(names, stacks, y, x_title, what, height, width), wide)
    if len(stacks) < 2:
        return chart
    keys = "".join(
        f'<span class="key"><i class="b{c % COLOURS}"></i>{text(name)}</span>'
        for c, (name, _) in enumerate(stacks)
    )
    return f'{chart}<div class="legend">{keys}</div>'


def _bars(
    names: Sequence[str],
    stacks: Sequence[tuple[str, Sequence[float]]],
    y: Axis,
    x_title: str,
    what: str,
    height: int,
    width: int,
) -> str:
    totals = np.sum([values for _, values in stacks], axis=0)
    high = float(totals.max()) * 1.04 or 1.0
    sy = Scale(0, high, height - BOTTOM, TOP)
    step = (width - LEFT - RIGHT) / len(names)
    thick = min(max(step * (0.72 if len(names) < 80 else 1), 0.6), 60)
    parts = [_y_grid(sy, ticks(0, high, y.unit, 4), y, height, width)]
    for i, name in enumerate(names):
        below = 0.0
        tip = [f"{x_title} {name}"]
        group = []
        for colour, (series, values) in enumerate(stacks):
            top, bottom = sy(below + values[i]), sy(below)
            if values[i]:
                place = f'x="{LEFT + i * step + (step - thick) / 2:.1f}" y="{top}"'
                tall = f'width="{thick:.1f}" height="{max(bottom - top, 0.6):.1f}"'
                group.append(f'<rect class="f{colour % COLOURS}" {place} {tall}/>')
                shown = y.unit.label(float(f"{values[i]:.4g}"))
                tip.append(f"{series}: {shown} {y.unit.name}".rstrip())
            below += values[i]
        parts.append(f"<g><title>{text(chr(10).join(tip))}</title>{''.join(group)}</g>")
    every = max(1, -(-len(names) // (width // 38)))
    parts += [
        f'<text class="tick mid" x="{LEFT + (i + 0.5) * step:.1f}" y="{height - BOTTOM + 15}">'
        f"{text(_clip(name, 8))}</text>"
        for i, name in enumerate(names)
        if i % every == 0
    ]
    parts.append(_titles(x_title, y, height, width))
    return _svg("".join(parts), height, what, "", width)


def heat(
    table: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    row_title: str,
    column_title: str,
    what: str,
    numbers: bool = False,
    square: bool = False,
) -> str:
    """Cells shaded by value (rows x columns), each with a tip; white is zero."""
    n, m = table.shape
    if not n or not m:
        return nothing("nothing to show")
    left = min(110, 28 + 7 * max(len(_clip(r, 13)) for r in rows))
    width = max(WIDTH - left - RIGHT, 3.0 * m)
    step = width / m
    tall = step if square else max(7.0, min(24.0, 230 / n))
    most = float(table.max()) or 1.0
    bottom = TOP + n * tall
    parts = []
    for i, j in zip(*(axis.tolist() for axis in np.nonzero(table))):
        value = float(table[i, j])
        share = (value / most) ** 0.5
        x, y = left + j * step, TOP + i * tall
        tip = f"{row_title} {rows[i]}, {column_title} {columns[j]}: {number(value)}"
        gap = 1 if min(step, tall) > 5 else 0
        parts.append(
            f'<rect class="heat" x="{x:.1f}" y="{y:.1f}" width="{step - gap:.1f}" '
            f'height="{tall - gap:.1f}" rx="{1.5 if gap else 0}" '
            f'fill-opacity="{0.06 + 0.94 * share:.2f}">'
            f"<title>{text(tip)}</title></rect>"
        )
        if numbers and step > 15:
            strong = " over" if share > 0.55 else ""
            parts.append(
                f'<text class="cell{strong}" x="{x + (step - gap) / 2:.1f}" '
                f'y="{y + tall / 2 + 3.5:.1f}">{number(value)}</text>'
            )
    for names, every, spot in (
        (rows, max(1, -(-n // int(max(1, n * tall // 11)))), "row"),
        (columns, max(1, -(-m // int(max(1, width // 30)))), "column"),
    ):
        for i in range(0, len(names), every):
            name = text(_clip(names[i], 13 if spot == "row" else max(3, int(step * every / 6))))
            if spot == "row":
                y = TOP + (i + 0.5) * tall + 3.5
                parts.append(f'<text class="tick end" x="{left - 6}" y="{y:.1f}">{name}</text>')
            else:
                x = left + (i + 0.5) * step
                parts.append(
                    f'<text class="tick mid" x="{x:.1f}" y="{bottom + 13:.1f}">{name}</text>'
                )
    parts.append(
        f'<text class="axis mid" x="{left + width / 2:.1f}" y="{bottom + 30:.1f}">'
        f"{text(column_title)}</text>"
        f'<text class="axis mid" transform="translate(11 {TOP + n * tall / 2:.1f}) rotate(-90)">'
        f"{text(row_title)}</text>"
    )
    whole = left + width + RIGHT
    svg = _svg("".join(parts), int(bottom + 38), what, "", whole)
    wide = f' style="min-width:{whole:.0f}px"' if whole > WIDTH + 1 else ""
    return f'<div class="chart scroll"><div{wide}>{svg}</div></div>'


def nothing(why: str) -> str:
    return f'<p class="nothing">{text(why)}</p>'


def _svg(body: str, height: int, what: str, extra: str = "", width: float = WIDTH) -> str:
    label = f'role="img" aria-label="{text(what)}"'
    extra += f' style="max-width:{1.4 * width:.0f}px"'  # alone on a page, letters stay letters
    return f'<svg viewBox="0 0 {width:.0f} {height}" {label}{extra}>{body}</svg>'


def _grid(
    sx: Scale, sy: Scale, xs: Sequence[float], ys: Sequence[float], x: Axis, y: Axis, height: int
) -> str:
    width = int(sx.end) + RIGHT
    parts = [_y_grid(sy, ys, y, height, width)]
    base = height - BOTTOM
    for v in xs:
        parts.append(f'<path class="grid faint" d="M{sx(v)} {TOP}V{base}"/>')
        parts.append(f'<text class="tick mid" x="{sx(v)}" y="{base + 15}">{x.unit.label(v)}</text>')
    parts.append(_titles(x.full_title, y, height, width))
    return "".join(parts)


def _y_grid(sy: Scale, ys: Sequence[float], y: Axis, height: int, width: int) -> str:
    parts = [
        f'<path class="grid" d="M{LEFT} {sy(v)}H{width - RIGHT}"/>'
        f'<text class="tick end" x="{LEFT - 7}" y="{sy(v) + 3.5:.1f}">{y.unit.label(v)}</text>'
        for v in ys
    ]
    base = height - BOTTOM
    return "".join(parts) + f'<path class="base" d="M{LEFT} {base}H{width - RIGHT}"/>'


def _titles(x_title: str, y: Axis, height: int, width: int) -> str:
    middle = (LEFT + width - RIGHT) / 2
    turn = f"translate(11 {(TOP + height - BOTTOM) / 2}) rotate(-90)"
    return (
        f'<text class="axis mid" x="{middle}" y="{height - 7}">{text(x_title)}</text>'
        f'<text class="axis mid" transform="{turn}">{text(y.full_title)}</text>'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points) if points else ""


def _steps(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """A staircase: a level holds until the next point."""
    out = list(points[:1])
    for x, y in points[1:]:
        out += [(x, out[-1][1]), (x, y)]
    return out


def _clip(name: str, most: int) -> str:
    return name if len(name) <= most else name[: max(1, most - 1)] + "…"


def dots(
    points: Sequence[tuple[float, float, str]],
    x: Axis,
    y: Axis,
    what: str,
    names: Sequence[str] = (),
    best: int | None = None,
    height: int = 250,
    marks: Sequence[tuple[str, float | None]] = (),
    front: Sequence[int] = (),
) -> str:
    """Points (x, y, tip), one of them the best; `names` label x = 0, 1, ... where given. marks: the
    label of each point, and how dark it is (0 to 1), or None for a diamond of another colour.
    front: points that a staircase joins, from left to right."""
    if not points:
        return nothing("nothing was measured yet")
    xs, ys = [p[0] for p in points], [p[1] for p in points]
    low, high = (-0.5, len(names) - 0.5) if names else (min(xs), max(xs))
    if not names:
        low, high = (low / 1.3, high * 1.3) if x.log else span(xs)
    y_low, y_high = span(ys, False, y.top)
    sx, sy = (
        Scale(low, high, LEFT, WIDTH - RIGHT, x.log),
        Scale(y_low, y_high, height - BOTTOM, TOP),
    )
    at = [] if names else log_ticks(low, high, x.unit) if x.log else ticks(low, high, x.unit)
    parts = [_grid(sx, sy, at, ticks(y_low, y_high, y.unit, 5), x, y, height)]
    parts += [
        f'<text class="tick mid" x="{sx(i)}" y="{height - BOTTOM + 15}">{text(_clip(n, 14))}</text>'
        for i, n in enumerate(names)
    ]
    stairs = _steps(sorted((sx(points[i][0]), sy(points[i][1])) for i in front))
    parts.append(f'<path class="line s1 dashed" d="{_path(stairs)}"/>' if front else "")
    for (a, b, tip), (label, dark) in zip(points, marks):
        parts.append(_marked(sx(a), sy(b), tip, label, dark))
    for i, (a, b, tip) in enumerate(points if not marks else ()):
        look = "f1" if i == best else "f0 soft"
        parts.append(
            f'<circle class="{look}" cx="{sx(a)}" cy="{sy(b)}" r="{6 if i == best else 4.5}">'
            f"<title>{text(tip)}</title></circle>"
        )
    return f'<div class="chart">{_svg("".join(parts), height, what)}</div>'


def _marked(x: float, y: float, tip: str, label: str, dark: float | None) -> str:
    """A point with its name above it."""
    shape = (
        f'<path class="f1" d="M{x:g} {y - 7:g}l7 7l-7 7l-7-7Z">'
        if dark is None
        else f'<circle class="f0 edge" fill-opacity="{0.15 + 0.85 * dark:.2f}" cx="{x}" cy="{y}" '
        'r="6.5">'
    )
    name = f'<text class="tick mid" x="{x}" y="{y - 12:.1f}">{text(_clip(label, 24))}</text>'
    return f"{shape}<title>{text(tip)}</title></{'path' if dark is None else 'circle'}>{name}"


# Axes


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log10(max(v, 1e-12)) for v in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return round(self.start + share * (self.end - self.start), 1)


def ticks(low: float, high: float, unit: Unit, most: int = 6) -> list[float]:
    """Round values between low and high (in the axis's unit), at most about `most`."""
    a, b = low / unit.scale, high / unit.scale
    if not b > a:
        return [low]
    step = 10 ** math.floor(math.log10((b - a) / most))
    step *= next((f for f in (1, 2, 5, 10) if (b - a) / (step * f) <= most), 10)
    first, last = math.ceil(a / step - 1e-9), math.floor(b / step + 1e-9)
    return [i * step * unit.scale for i in range(first, last + 1)]


def log_ticks(low: float, high: float, unit: Unit) -> list[float]:
    """1, 2, 5 times powers of ten, thinned to what fits."""
    a, b = low / unit.scale, high / unit.scale
    powers = range(math.floor(math.log10(a)), math.ceil(math.log10(b)) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        found = [f * 10.0**p for p in powers for f in factors if a <= f * 10.0**p <= b]
        if len(found) <= 7:
            break
    return [v * unit.scale for v in found]


def span(
    values: Sequence[float], zero: bool = False, top: float | None = None
) -> tuple[float, float]:
    """Lowest and highest with a little air; from zero, or not above `top`, where asked."""
    if not values:
        return 0.0, 1.0
    low, high = min(values), max(values)
    air = 0.06 * (high - low) or abs(high) * 0.1 or 0.5
    low, high = (0.0 if zero and low >= 0 else low - air), high + air
    return low, (min(high, top) if top is not None and max(values) <= top else high)


def thin(count: int, most: int = 240) -> list[int]:
    """Indices of at most about `most` points, evenly spread, both ends kept."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})
