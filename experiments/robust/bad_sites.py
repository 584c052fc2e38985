"""Methods of a federation in which some sites lie: they send their update times `factor`.

Named by plan.toml as 'bad_sites:Mean' and so on; liars are drawn once from the plan's seed.
"""

from __future__ import annotations

from pydantic import Field

from cupola.base.randomness import permutation
from cupola.training import Method
from cupola.training.methods.geometric_median import GeometricMedian
from cupola.training.methods.trimmed_mean import Median, TrimmedMean


class Mean(Method):
    """FedAvg with liars. bad: how many of `sites`; factor: of what they send."""

    sites: int = 60
    bad: int = Field(12, ge=0)
    factor: float = -4.0

    def update(self, turn, update, steps):  # noqa: ARG002
        liars = permutation(turn.site.seed or 0, "liars", 0, 0, self.sites)[: self.bad]
        lies = turn.site.index in liars
        return [self.factor * change for change in update] if lies else update


class Geometric(Mean, GeometricMedian):
    """The geometric median of group sums, with liars."""


class Trimmed(Mean, TrimmedMean):
    """The trimmed mean, with liars."""


class Coordinate(Mean, Median):
    """The median of every coordinate, with liars."""
