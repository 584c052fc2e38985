"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, TypeGuard

import numpy as np

LOWER_IS_BETTER = frozenset({"loss", "rmse"})
SHARES = frozenset({"accuracy", "class_accuracy", "miou", "auroc"})  # shown in per cent
_TITLES = {"miou": "mIoU", "auroc": "AUROC", "rmse": "RMSE", "r2": "R²"}
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1, "B"))
_TIME = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))


def text(value: Any) -> str:
    """Any value from a file, safe inside HTML (text and quoted attributes)."""
    return escape(str(value), quote=True)


def title(metric: str) -> str:
    """A metric's name at the start of a line."""
    return _TITLES.get(metric) or metric.replace("_", " ").capitalize()


def finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def times(often: int) -> str:
    """How often something is done."""
    return "once" if often == 1 else f"{often:,} times"


def number(value: Any, digits: int = 4) -> str:
    """Thousands with commas, small ones with the given significant digits."""
    if not finite(value):
        return "–"
    if isinstance(value, int) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def count(n: int, noun: str) -> str:
    """'1 site', '12 sites'."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def size(value: Any) -> str:
    """Bytes, in powers of 1,000."""
    if not finite(value):
        return "–"
    scale, name = next(((s, n) for s, n in _BYTES if abs(value) >= s), (1, "B"))
    return f"{value / scale:,.0f} B" if name == "B" else f"{value / scale:.3g} {name}"


def duration(value: Any) -> str:
    """Seconds as s, min or h."""
    if not finite(value):
        return "–"
    if value < 120:
        return f"{value:.3g} s"
    if value < 7200:
        return f"{int(value // 60)} min {int(value % 60)} s"
    return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"


def roughly(value: float) -> str:
    """Seconds that are only foreseen: no more digits than they deserve."""
    return duration(max(1, round(value)))


def metric(name: str, value: Any, spread: Any = None) -> str:
    """A metric with its unit, and its standard deviation where there is one."""
    if not finite(value):
        return "–"
    many = finite(spread)
    if name in SHARES:
        return f"{100 * value:.2f}" + (f" ± {100 * spread:.2f}" if many else "") + " %"
    return f"{value:.4g}" + (f" ± {spread:.2g}" if many else "")


def goal(name: str, value: Any) -> str:
    """A target: a metric without needless zeros."""
    if not finite(value):
        return "–"
    return f"{100 * value:.6g} %" if name in SHARES else f"{value:.6g}"


@dataclass(frozen=True)
class Unit:
    """How an axis shows its values: `value / scale`, in `name`."""

    scale: float = 1.0
    name: str = ""

    def label(self, value: float) -> str:
        shown = value / self.scale
        return f"{shown:,.0f}" if abs(shown) >= 1e4 else f"{shown:.6g}"


PLAIN = Unit()


def byte_unit(most: float) -> Unit:
    return next((Unit(s, n) for s, n in _BYTES if most >= s), Unit(1, "B"))


def time_unit(most: float) -> Unit:
    return next((Unit(s, n) for s, n in _TIME if most >= 2 * s), Unit(1, "s"))


def metric_unit(name: str) -> Unit:
    return Unit(0.01, "%") if name in SHARES else PLAIN


def mean_spread(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (None below two values)."""
    if not len(values):
        return None, None
    mean = float(np.mean(values))
    return mean, float(np.std(values, ddof=1)) if len(values) > 1 else None


def epsilon(value: Any) -> str:
    """Epsilon as written in tables; JSON has no infinity."""
    return "∞" if value is None or value == float("inf") else number(value, 3)


def main_metric(record: Mapping[str, Any]) -> str:
    """The first metric worth a glance in a record."""
    for where in ("test", "sites_test", "validation", "sites_validation"):
        for name in ("accuracy", "rmse", "loss"):
            if (value := record.get(where, {}).get(name)) is not None:
                return f"{name} {metric(name, value)}"
    return ""
