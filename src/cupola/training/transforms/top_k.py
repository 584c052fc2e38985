"""Top-k sparsification: the largest numbers of an update, with error feedback at the site.

Each site sends places and values of its own largest numbers, and keeps the others for later (Aji
and Heafield 2017; Stich, Cordonnier and Jaggi 2018). Places differ from site to site, so that a
masked sum cannot hold them.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from cupola.errors import PlanError
from cupola.federation.compact import SPARSE, to_sparse
from cupola.federation.message import Spec
from cupola.training.transforms.base import Transform, Vector, Way
from cupola.training.transforms.sparsify import Share, kept, remembered

if TYPE_CHECKING:
    from cupola.training.loop import Training


class TopK(Transform):
    """The largest numbers, as places and float32 values.

    share: of the numbers that is sent. feedback: a site keeps the others and adds them later.
    """

    kind: Literal["top-k"] = "top-k"
    share: Share = 0.01
    feedback: bool = True
    last: ClassVar[bool] = True
    masked: ClassVar[bool] = False
    keeps_clip: ClassVar[bool] = True

    @property
    def remembers(self) -> bool:
        return self.feedback

    def check(self, training: Training) -> None:
        if training.sum.masked:
            raise PlanError(
                "transforms: top-k cannot be masked: every site sends other places, and they would "
                "have to be told; use kind = 'sparsify', whose places are the same at all sites, "
                "or sum = 'plain'"
            )
        if training.method is not None and training.method.asks != "sum":
            raise PlanError(
                f"transforms: top-k with {training.method.key}: every site sends other places, and "
                "where most send nothing a robust mean is zero for good; use kind = 'sparsify', "
                "whose places are the same at all sites"
            )

    def spec(self, spec: Spec, room: int | None) -> Spec:  # noqa: ARG002
        return Spec(spec.shape, "float", code=(SPARSE, kept(self.share, math.prod(spec.shape))))

    def at_site(self, numbers: Vector, way: Way) -> np.ndarray:
        whole = remembered(numbers, way) if self.feedback else numbers
        many = kept(self.share, whole.size)
        places = np.sort(np.argpartition(np.abs(whole), whole.size - many)[whole.size - many :])
        values = whole[places].astype(np.float32)
        if self.feedback:
            way.memory = whole.copy()
            way.memory[places] -= values
        return to_sparse(places, values, whole.size)

    def describe(self) -> str:
        return f"the largest {self.share:.3g} of the numbers{', the rest later' * self.feedback}"
