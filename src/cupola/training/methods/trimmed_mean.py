"""Robust means coordinate by coordinate (Yin, Chen, Ramchandran and Bartlett 2018).

Of every coordinate of sites' updates the largest and the smallest `trim` are left out before the
mean; the median leaves all but the middle. A share of sites below `trim` can send anything. Both
need every site's own update, so they are told to the coordinator one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from cupola.errors import PlanError
from cupola.federation.message import Arrays
from cupola.training.methods.method import Method, require_plain_mean
from cupola.training.participation import expected_sites

if TYPE_CHECKING:
    from cupola.training.loop import Training


class TrimmedMean(Method):
    """trim: the share of sites that is left out at either end of every coordinate."""

    summary = "the mean without the extremes of every coordinate: robust to a share of bad sites"
    source = "Yin et al. 2018"
    asks = "gather"
    alters = "extremes are left out of the mean"

    trim: Annotated[float, Field(gt=0, lt=0.5)] = 0.2

    def check(self, training: Training) -> None:
        require_plain_mean(self, training)
        many = expected_sites(training.participation, training.sites)
        if self._out(many) < 1:
            raise PlanError(
                f"method.trim = {self.trim:g} leaves out nobody of {many:g} sites a round; raise "
                f"it to {math.ceil(1000 / many) / 1000:g}, or ask more sites"
            )

    def _out(self, many: float) -> int:
        """How many of so many sites are left out at either end."""
        return int(self.trim * many + 1e-9)

    def aggregate(self, updates: Sequence[Arrays], weights: Sequence[float]) -> Arrays:  # noqa: ARG002
        # One at least, where fewer sites came than were asked.
        out = min(max(1, self._out(len(updates))), (len(updates) - 1) // 2)
        return {
            name: np.sort([u[name] for u in updates], 0)[out : len(updates) - out].mean(0)
            for name in updates[0]
        }


class Median(Method):
    """The median of every coordinate."""

    summary = "the median of every coordinate: robust to almost half of the sites"
    source = "Yin et al. 2018"
    asks = "gather"
    alters = "the median stands for the mean"

    def check(self, training: Training) -> None:
        require_plain_mean(self, training)

    def aggregate(self, updates: Sequence[Arrays], weights: Sequence[float]) -> Arrays:  # noqa: ARG002
        return {name: np.median([u[name] for u in updates], 0) for name in updates[0]}
