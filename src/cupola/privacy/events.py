"""What a mechanism did to a person's data: values that a ledger keeps and an accountant composes.

Every event states its noise in units of sensitivity, so that the accountant needs nothing else.
Which data sets count as neighbours matters for that unit:

- *add-remove*: one record more or less; the sensitivity of a sum is the norm bound of one record
  (the clip).
- *replace-one*: one record exchanged for another, the number of records being public; the
  sensitivity of a sum is twice the norm bound.

`Gaussian`, `Concentrated`, `Pure` and `Approximate` carry the relation under which they hold
(`neighbours`). Asked for replace-one, the accountant converts an add-remove event, since a
replacement is a removal and an addition; it never converts the other way, because a bound for
replacements says nothing about a record more or less. `SampledGaussian` is different: its unit is
always the norm bound of one record, and the accountant works out what sampling makes of it under
either relation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from operator import ge, gt, le, lt
from typing import Any, ClassVar, Literal, TypeVar, get_args

from cupola.errors import PlanError

Neighbours = Literal["add-remove", "replace-one"]
Sampling = Literal["poisson", "without-replacement"]

MOST_COUNT = 10**12  # more repetitions than any run makes; keeps counts exact in float64
_E = TypeVar("_E", bound="Event")
_RANGES: dict[str, dict[str, Any]] = {
    "rate": {"least": 0, "most": 1},
    "noise": {"least": 0},
    "rho": {"least": 0},
    "epsilon": {"least": 0},
    "delta": {"least": 0, "below": 1},
}
_CHOICES = {"neighbours": get_args(Neighbours), "sampling": get_args(Sampling)}


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    infinite: bool = False,
) -> float:
    """The value as a float, or a `PlanError` that names the field and the allowed range."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    bounds = (
        ("above", above, gt),
        ("at least", least, ge),
        ("below", below, lt),
        ("at most", most, le),
    )
    wrong = isinstance(value, bool | str) or math.isnan(number)
    wrong = wrong or (math.isinf(number) and not infinite)
    if wrong or any(b is not None and not holds(number, b) for _, b, holds in bounds):
        parts = [f"{word} {bound:g}" for word, bound, _ in bounds if bound is not None]
        raise PlanError(f"{name} must be a number {' and '.join(parts)}, not {value!r}.")
    return number


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """A `PlanError` that lists the choices, unless the value is one of them."""
    if value not in choices:
        raise PlanError(f"{name} must be one of {', '.join(choices)}, not {value!r}.")


def check_count(name: str, value: object, *, least: int = 0) -> int:
    """The value as an int, or a `PlanError`; floats and booleans are no counts."""
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or not least <= int(value) <= MOST_COUNT:  # type: ignore[call-overload]
        raise PlanError(
            f"{name} must be a whole number from {least} to {MOST_COUNT:g}, not {value!r}."
        )
    return int(value)  # type: ignore[call-overload]


class Event:
    """One kind of access to private data, made `count` times. Use the subclasses: frozen values."""

    kind: ClassVar[str] = ""
    count: int

    def __post_init__(self) -> None:
        """Check every field by its name, and store it as what it stands for."""
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if field.name in _RANGES:
                value = check_number(field.name, value, **_RANGES[field.name])
            elif field.name in _CHOICES:
                check_choice(field.name, value, _CHOICES[field.name])
            elif field.name == "count":
                value = check_count("count", value)
            object.__setattr__(self, field.name, value)  # events are frozen

    def as_dict(self) -> dict[str, Any]:
        """JSON-able; `from_dict` is its inverse."""
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Event:
        """The event that `as_dict` wrote; unknown kinds and fields are refused, not ignored."""
        given = dict(values)
        kind = given.pop("kind", None)
        if kind not in _KINDS:
            raise PlanError(f"Privacy event of unknown kind {kind!r}; known: {', '.join(_KINDS)}.")
        cls = _KINDS[kind]
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        unknown = sorted(set(given) - set(names))
        if unknown:
            raise PlanError(f"Privacy event {kind!r} has no field {unknown[0]!r}; it has {names}.")
        try:
            return cls(**given)
        except TypeError as error:
            raise PlanError(f"Privacy event {kind!r} is incomplete: {error}.") from None

    def counted(self: _E, count: int) -> _E:
        """The same access, made `count` times; the other fields were checked when it was made."""
        made = object.__new__(type(self))
        vars(made).update(vars(self), count=check_count("count", count))
        return made

    def times(self: _E, repetitions: int) -> _E:
        """The same access, `repetitions` times as often."""
        return self.counted(self.count * check_count("repetitions", repetitions))


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise of standard deviation `noise` * L2 sensitivity under `neighbours`."""

    kind: ClassVar[str] = "gaussian"
    noise: float
    count: int = 1
    neighbours: Neighbours = "add-remove"


@dataclass(frozen=True)
class SampledGaussian(Event):
    """Gaussian noise on a sum over a random sample, which nobody but the sampler knows.

    `noise` is the standard deviation over the norm bound of one record. `rate` is the probability
    that a record is in the sample: each independently (poisson), or a fixed share of a known
    number of records (without-replacement: defined for replace-one only).
    """

    kind: ClassVar[str] = "sampled-gaussian"
    rate: float
    noise: float
    count: int = 1
    sampling: Sampling = "poisson"


@dataclass(frozen=True)
class Concentrated(Event):
    """Any mechanism whose Renyi divergence of every order alpha is at most rho * alpha (zCDP).

    delta: probability that this fails, as in (epsilon, delta); 0 for zCDP itself.
    """

    kind: ClassVar[str] = "concentrated"
    rho: float
    delta: float = 0.0
    count: int = 1
    neighbours: Neighbours = "add-remove"


@dataclass(frozen=True)
class Pure(Event):
    """Any mechanism that is (epsilon, 0)-differentially private under `neighbours`."""

    kind: ClassVar[str] = "pure"
    epsilon: float
    count: int = 1
    neighbours: Neighbours = "add-remove"


@dataclass(frozen=True)
class Approximate(Event):
    """Any mechanism that is (epsilon, delta)-differentially private under `neighbours`."""

    kind: ClassVar[str] = "approximate"
    epsilon: float
    delta: float
    count: int = 1
    neighbours: Neighbours = "add-remove"


@dataclass(frozen=True)
class Unprotected(Event):
    """An answer without any guarantee; `what` says which. Its epsilon is infinite."""

    kind: ClassVar[str] = "unprotected"
    what: str
    count: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.what, str) or not self.what:
            raise PlanError(f"what must say which answer is unprotected, not {self.what!r}.")
        super().__post_init__()


_KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (Gaussian, SampledGaussian, Concentrated, Pure, Approximate, Unprotected)
}


def common_neighbours(events: Iterable[Event]) -> Neighbours:
    """For which neighbours all of these events say something: a record more or less, unless one
    holds for replacements only, into which the others can be converted."""
    for event in events:
        fixed = getattr(event, "sampling", "") == "without-replacement"
        if fixed or getattr(event, "neighbours", "add-remove") == "replace-one":
            return "replace-one"
    return "add-remove"


def merge(events: Iterable[Event]) -> tuple[Event, ...]:
    """Equal events counted together, in order of first appearance; those made 0 times left out."""
    counts: dict[Event, int] = {}
    for event in events:
        one = event.counted(1)
        counts[one] = counts.get(one, 0) + event.count
    return tuple(one.counted(count) for one, count in counts.items() if count)
