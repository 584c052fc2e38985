"""Krum (Blanchard, El Mhamdi, Guerraoui and Stainer 2017): the update that has most company.

Every update is scored by the sum of its squared distances to the n - f - 2 nearest others, where f
sites may be bad; the `take` best are averaged (1: Krum; more: multi-Krum).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import Field

from cupola.errors import PlanError
from cupola.federation.message import Arrays
from cupola.training.methods.method import Method, flat, require_plain_mean
from cupola.training.participation import expected_sites

if TYPE_CHECKING:
    from cupola.training.loop import Training


class Krum(Method):
    """bad: sites a round that may send anything (f). take: updates that are averaged."""

    summary = "the update nearest to most others: robust to a number of bad sites"
    source = "Blanchard et al. 2017"
    asks = "gather"
    alters = "single updates stand for the mean of all"

    bad: Annotated[int, Field(ge=1)] = 1
    take: Annotated[int, Field(ge=1)] = 1

    def check(self, training: Training) -> None:
        require_plain_mean(self, training)
        many = expected_sites(training.participation, training.sites)
        if many < 2 * self.bad + 3:
            raise PlanError(
                f"method.bad = {self.bad} needs at least {2 * self.bad + 3} sites a round (2 bad + "
                f"3); {many:g} are asked"
            )
        if self.take > many - self.bad:
            raise PlanError(
                f"method.take = {self.take} of {many:g} sites a round averages bad ones, too; take "
                f"{many - self.bad:g} at most"
            )

    def aggregate(self, updates: Sequence[Arrays], weights: Sequence[float]) -> Arrays:  # noqa: ARG002
        rows = np.array([flat(update) for update in updates])
        with np.errstate(over="ignore", invalid="ignore"):  # infinity and NaN are sorted last
            square = (rows * rows).sum(1)
            distances = square[:, None] + square - 2 * rows @ rows.T
        np.fill_diagonal(distances, np.inf)
        near = max(1, len(rows) - self.bad - 2)
        scores = np.sort(distances, 1)[:, :near].sum(1)
        best = np.argsort(scores, kind="stable")[: self.take]
        return {name: np.mean([updates[i][name] for i in best], 0) for name in updates[0]}
