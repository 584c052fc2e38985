"""What a sweep varies: 'local.lr=0.01,0.1' (a list) or 'local.lr=0.001..1:log' (a range)."""

from __future__ import annotations

import itertools
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cupola.analysis.plan_file import parse_setting
from cupola.errors import PlanError

_RANGE = re.compile(r"^\s*([-+.\deE]+)\s*\.\.\s*([-+.\deE]+?)\s*(:log)?\s*$")
_FORBIDDEN = {"seed", "seeds", "grid", "name"}


@dataclass(frozen=True)
class Over:
    """A dotted key with its values, or with the range they are drawn from."""

    key: str
    values: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False

    @property
    def is_range(self) -> bool:
        return not self.values

    def typed(self, value: float) -> float | int:
        """A number of a range with three digits, so that it can be typed again."""
        return int(value) if self.whole else min(max(float(f"{value:.3g}"), self.low), self.high)


def parse_over(text: str) -> Over:
    """Read one --over."""
    key, equals, said = text.partition("=")
    key = key.strip()
    if not equals or not key or not said.strip():
        raise PlanError(
            f"--over {text}: say key=a,b,c or key=low..high[:log], "
            "for example --over local.lr=0.01,0.1"
        )
    if key in _FORBIDDEN:
        raise PlanError(f"--over {text}: '{key}' cannot be swept; seeds belong into the plan")
    if found := _RANGE.match(said):
        return _range(text, key, *found.groups())
    values = _values(said)
    if any(v == "" for v in values):
        raise PlanError(f"--over {text}: an empty value; say key=a,b,c")
    if len({repr(v) for v in values}) < len(values):
        raise PlanError(f"--over {text}: a value stands there twice")
    return Over(key, tuple(values))


def _range(text: str, key: str, low_text: str, high_text: str, log: str | None) -> Over:
    try:
        low, high = float(low_text), float(high_text)
    except ValueError:
        raise PlanError(f"--over {text}: a range is low..high with numbers") from None
    if not low < high or (log and low <= 0):
        more = " and low above 0 with :log" if log else ""
        raise PlanError(f"--over {text}: a range needs low below high{more}")
    whole = all(re.fullmatch(r"[-+]?\d+", t.strip()) for t in (low_text, high_text)) and not log
    return Over(key, (), low, high, bool(log), whole)


def _values(said: str) -> list[Any]:
    try:
        return list(tomllib.loads(f"value = [{said}]")["value"])
    except tomllib.TOMLDecodeError:  # bare words
        return [parse_setting(f"x={part.strip()}")[1] for part in said.split(",")]


def grid(over: Sequence[Over]) -> list[dict[str, Any]]:
    """Every combination."""
    for one in over:
        if one.is_range:
            raise PlanError(
                f"--over {one.key}: a range has no end of values; list them for a grid, "
                "or use --strategy random or tpe"
            )
    return [
        dict(zip((one.key for one in over), chosen))
        for chosen in itertools.product(*(one.values for one in over))
    ]
