"""Random sparsification: a seeded choice of numbers is sent, the same at every site.

Since all sites choose the same places, what they send can be added up, masked or not, and no place
is told. By default a site keeps what it did not send and adds it the next time (error feedback:
Stich, Cordonnier and Jaggi 2018). Without, totals are divided by the share sent, so that they are
right on average (Konecny et al. 2016: random masks); but not where whole sites are hidden, since
that would make an update longer than its clip.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from cupola.base.randomness import generator
from cupola.federation.message import Spec
from cupola.training.transforms.base import Transform, Vector, Way

Share = Annotated[float, Field(gt=0, le=1)]


class Sparsify(Transform):
    """A random part of the numbers, another one in every round.

    share: of the numbers that is sent. feedback: a site keeps the others and adds them later.
    """

    kind: Literal["sparsify"] = "sparsify"
    share: Share = 0.5
    feedback: bool = True
    keeps_clip: ClassVar[bool] = True

    @property
    def remembers(self) -> bool:
        return self.feedback

    def spec(self, spec: Spec, room: int | None) -> Spec:  # noqa: ARG002
        return replace(spec, shape=(kept(self.share, math.prod(spec.shape)),))

    def at_site(self, numbers: Vector, way: Way) -> np.ndarray:
        whole = remembered(numbers, way) if self.feedback else numbers
        places = self._places(numbers.size, way.seed)
        sent = whole[places]
        if self.feedback:
            way.memory = whole.copy()
            way.memory[places] = 0.0
        return sent

    def at_coordinator(self, total: Vector, size: int, way: Way) -> Vector:
        found = np.zeros(size)
        even = self.feedback or way.limit is not None
        found[self._places(size, way.seed)] = total if even else total * (size / total.size)
        return found

    def _places(self, size: int, seed: int) -> np.ndarray:
        lots = generator(seed, "places").random(size)
        many = kept(self.share, size)
        return np.sort(np.argpartition(lots, many - 1)[:many])

    def describe(self) -> str:
        return f"a random {self.share:.3g} of the numbers{', the rest later' * self.feedback}"


def kept(share: float, size: int) -> int:
    """How many of `size` numbers are sent; at least one."""
    return max(1, math.ceil(share * size))


def remembered(numbers: Vector, way: Way) -> Vector:
    """The numbers with what was not sent before."""
    return numbers if way.memory is None else numbers + way.memory
