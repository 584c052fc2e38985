"""Transform (in the field: postprocessor, compressor): one step of an update on its way.

What a site sends of its update goes through the plan's transforms in their order; the coordinator
undoes them on the *sum*, in reverse order, once. So a transform is linear, or can be undone on a
sum of what it made, and what it draws that both sides must know comes from a public seed.

A new one is a subclass, in a file of its own; a plan names it `kind = "module:Class"`. Its fields
are its options. Where whole sites are hidden the noise is for updates no longer than the clip, and
only transforms that promise `keeps_clip` serve.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from cupola.federation.message import Spec
from cupola.training.choices import Choice

if TYPE_CHECKING:
    from cupola.training.loop import Training

Vector = NDArray[np.float64]


@dataclass
class Way:
    """What a transform may know in one round of one vector.

    seed: public, of this transform and round. room: sites that a masked total has room for; None
    where sums are plain. range: the largest number that is sent as it is (see `scale`). limit: the
    longest that what leaves may be, where whole sites are hidden; else None.
    At a site only: random, its own; memory, the transform's own, from round to round; beyond,
    how many numbers were cut off at the range.
    """

    seed: int
    room: int | None = None
    range: float = 1.0
    limit: float | None = None
    random: np.random.Generator = field(default_factory=np.random.default_rng)
    memory: Vector | None = None
    beyond: int = 0


class Transform(Choice):
    """A step of an update on its way. The defaults change nothing.

    last: what it makes are no numbers that another one could take. masked: whether a masked sum
    can hold what it makes. ranged: whether it needs a range that all sites share. keeps_clip: a
    promise, that what it hands on stands for no longer a vector than it was given (in the 2-norm),
    whatever the data; and for none longer than `Way.limit`, if it is the last.
    """

    kind: str
    last: ClassVar[bool] = False
    masked: ClassVar[bool] = True
    ranged: ClassVar[bool] = False
    keeps_clip: ClassVar[bool] = False

    @property
    def remembers(self) -> bool:
        """Whether a site keeps what was not sent, and adds it the next time (error feedback)."""
        return False

    @property
    def down(self) -> int | None:
        """Bits of a parameter on its way to the sites; None: as it is."""
        return None

    def check(self, training: Training) -> None:
        """Refuse trainings that it cannot serve, with the way out."""

    def spread(self, room: int | None) -> float:  # noqa: ARG002
        """The range that serves it best, in standard deviations of the numbers."""
        return 1.0

    def spec(self, spec: Spec, room: int | None) -> Spec:  # noqa: ARG002
        """What it makes of a vector of numbers with this spec."""
        return spec

    def at_site(self, numbers: Vector, way: Way) -> np.ndarray:  # noqa: ARG002
        """What is handed on of these numbers."""
        return numbers

    def at_coordinator(self, total: Vector, size: int, way: Way) -> Vector:  # noqa: ARG002
        """The `size` numbers that a total of what was handed on stands for."""
        return total

    def describe(self) -> str:
        """A few words for the ledger and for `cupola check`."""
        return self.kind
