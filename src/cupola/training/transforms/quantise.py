"""Quantisation: stochastic rounding to b bits after a seeded rotation (Suresh et al. 2017).

All sites share the rotation and the range, so that their integers can be added up and turned back
once. Rounding is up or down by chance, so that the mean over sites is right on average.

Under masked sums the *total* has b bits a number: with n sites in the roster each has the levels
-L..L, L = (2^b - 1) // 2n, so that no total wraps around. Several totals travel as the digits of
one 64-bit word of an ordinary masked sum (see `federation.compact`): the protocol is the same, and
a sum of words is the word of the sums. With plain sums each site has 2^b - 1 levels to itself.

Where whole sites are hidden, noise is for updates no longer than the clip, and rounding must not
make one longer: it is drawn until the result is no longer than the clip (conditional rounding, as
there), and if that fails twenty times numbers are rounded towards zero. To make that rare the
update is shrunk first, by a factor that all know.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from cupola.errors import PlanError
from cupola.federation.compact import DIGITS, digits_per_word, from_words, to_words, words_for
from cupola.federation.message import Spec
from cupola.training.transforms.base import Transform, Vector, Way
from cupola.training.transforms.rotation import rotate, unrotate

if TYPE_CHECKING:
    from cupola.training.loop import Training

Bits = Annotated[int, Field(ge=2, le=16)]
TRIES = 20


class Quantise(Transform):
    """Every number as one of a few levels.

    bits: of a number on its way up; of the total where sums are masked. download: of a parameter
    on its way down (rounded to nearest, after a rotation of its own); without it models travel as
    they are.
    """

    kind: Literal["quantise"] = "quantise"
    bits: Bits = 8
    download: Bits | None = None
    last: ClassVar[bool] = True
    ranged: ClassVar[bool] = True
    keeps_clip: ClassVar[bool] = True

    @property
    def down(self) -> int | None:
        return self.download

    def levels(self, room: int | None) -> int:
        """The largest integer of one site."""
        return (2**self.bits - 1) // (2 * (room or 1))

    def check(self, training: Training) -> None:
        room = room_of(training)
        if self.levels(room):
            return
        assert room is not None
        least = (2 * room).bit_length()
        share = f"{self.bits / max(8, least):.2g}"
        raise PlanError(
            f"transforms: quantise.bits = {self.bits} has no room for masked totals of {room} "
            f"sites: at least {least} bits are needed; for fewer bits a number, send a part of "
            f"them, such as [{{ kind = 'sparsify', share = {share} }}, {{ kind = 'quantise', "
            f"bits = {max(8, least)} }}]"
        )

    def spread(self, room: int | None) -> float:
        """Few levels are better used by a narrow range, though more is cut off."""
        return min(4.0, 1.0 + 0.55 * math.log2(1 + self.levels(room)))

    def spec(self, spec: Spec, room: int | None) -> Spec:
        if room is None:
            return Spec(spec.shape, "int", code=(DIGITS, self.radix(room)))
        radix, size = self.radix(room), math.prod(spec.shape)
        # The largest word has the digit L in every place.
        most = self.levels(room) * ((radix ** digits_per_word(radix) - 1) // (radix - 1))
        bound = float(most)
        bound = bound if bound >= most else math.nextafter(bound, math.inf)
        return Spec((words_for(size, radix),), "int", bound)

    def radix(self, room: int | None) -> int:
        """Of the words: room for every digit of a total."""
        return 2 * self.levels(room) * (room or 1) + 1

    def at_site(self, numbers: Vector, way: Way) -> np.ndarray:
        most = self.levels(way.room)
        step = way.range / most
        with np.errstate(over="ignore"):  # what is beyond is cut off, however far
            steps = rotate(numbers, way.seed) / step
        way.beyond += int((np.abs(steps) > most).sum())
        np.clip(steps, -most, most, out=steps)
        longest = None if way.limit is None else way.limit / step
        return to_words(rounded(steps, way.random, longest), self.radix(way.room))

    def at_coordinator(self, total: Vector, size: int, way: Way) -> Vector:
        radix, step = self.radix(way.room), way.range / self.levels(way.room)
        if way.room is not None:
            words = total if total.dtype == np.int64 else np.rint(total).astype(np.int64)
            total = from_words(words, radix, size).astype(np.float64)
        return unrotate(total * step, way.seed)

    def describe(self) -> str:
        return f"rotated and rounded to {self.bits} bits"


def rounded(steps: Vector, random: np.random.Generator, longest: float | None = None) -> np.ndarray:
    """Whole numbers, up or down by chance: right on average. longest: the result is no longer, in
    the 2-norm; then it is a little short on average."""
    if longest is None:
        return _drawn(steps, random)
    # What rounding adds to the squared length: 1/4 a number at most, and some luck.
    room = 1 - steps.size / (2 * longest) ** 2 - 2 / longest
    steps = steps * math.sqrt(max(room, 0.0))
    for _ in range(TRIES):
        found = _drawn(steps, random)
        if _is_within(found, longest):
            return found
    found = np.trunc(steps).astype(np.int64)
    return found if _is_within(found, longest) else np.zeros_like(found)


def _drawn(steps: Vector, random: np.random.Generator) -> np.ndarray:
    """Up or down; never above the next whole number, which a sum of floats can round to."""
    found = np.floor(steps + random.random(steps.size))
    return np.minimum(found, np.ceil(steps), out=found).astype(np.int64)


def _is_within(found: np.ndarray, longest: float) -> bool:
    """Squares of whole numbers below 2^16 are added exactly."""
    return int(found @ found) <= longest**2 * (1 - 1e-12)


def room_of(training: Training) -> int | None:
    """Sites for which masked totals have room: all of the roster's."""
    return (training.federation or training.sites) if training.sum.masked else None


def coarse(vector: Vector, bits: int, seed: int) -> tuple[np.ndarray, float]:
    """A vector as words of b-bit numbers, rotated and rounded to nearest; and the step."""
    rotated, most = rotate(vector, seed), (2**bits - 1) // 2
    step = float(np.abs(rotated).max(initial=0.0)) / most or 1.0
    return to_words(np.rint(rotated / step).astype(np.int64), 2 * most + 1), step


def coarse_words(size: int, bits: int) -> int:
    """How many words a vector takes."""
    return words_for(size, 2 * ((2**bits - 1) // 2) + 1)


def refined(words: np.ndarray, size: int, bits: int, step: float, seed: int) -> Vector:
    """The vector that `coarse` words stand for."""
    return unrotate(from_words(words, 2 * ((2**bits - 1) // 2) + 1, size) * step, seed)
