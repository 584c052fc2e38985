"""The questions of the mixed model, with their bounds and what answers reveal.

n: people. A centred marker's squares add up to at most n (see `Markers.most`), the trait's and a
covariate's to n. K's eigenvalues add up to n, so that those of V lie between 1 - h and 1 + h n.
With Cauchy and Schwarz these bound all products, for any data, of all cohorts and of each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupola.association.design import AUTOSOME
from cupola.association.limits import WITHHELD, rounded
from cupola.association.questions import Asker, Chunk
from cupola.association.structure.mixed_tasks import CROSS, RESIDUAL, SOLUTION, SPREAD, TEST
from cupola.federation.message import Arrays, Question, Spec


@dataclass(frozen=True)
class MixedAsker:
    """Makes questions about `markers` markers. columns: of the autosomes' design, with the
    intercept."""

    asker: Asker
    markers: int
    columns: int

    def _question(
        self, task: str, arrays: Arrays, expects: dict[str, Spec], reveals: str, **more: Any
    ) -> Question:
        options = {**self.asker._test(AUTOSOME), **more}
        how = rounded(self.asker.study)
        return Question(task, arrays, options, expects, reveals=reveals, protection=how)

    def cross(self, probes: int) -> Question:
        n, wide = self.asker.n, self.columns + 1 + probes
        expects = {
            "products": Spec((self.markers, wide), "float", n),
            "squares": Spec((self.markers,), "float", n),
            "along": Spec((self.columns, probes), "float", n),
        }
        return self._question(
            CROSS, {}, expects, "per marker, its variance, its products with covariates, trait and "
            f"{probes} vectors of random signs that only the cohorts know, over all tested people",
        )  # fmt: skip

    def spread(self, vectors: np.ndarray) -> Question:
        """vectors: whose lengths in people's space are at most sqrt(n)."""
        expects = {"squares": Spec((vectors.shape[1],), "float", self.asker.n)}
        return self._question(
            SPREAD, {"markers": vectors}, expects, "how much relatedness there is: a number for "
            "each vector of random signs, over all tested people",
        )  # fmt: skip

    def residual(self, vectors: Arrays, heritability: float, at: int) -> Question:
        """vectors: whose lengths one iteration before were at most sqrt(n): a step makes them at
        most the root of V's condition longer."""
        n, systems = self.asker.n, vectors["trait"].shape[1]
        most = (1 + heritability * n) / (1 - heritability)
        expects = {
            "products": Spec((self.markers, systems), "float", n * math.sqrt(most)),
            "squares": Spec((systems,), "float", n * most),
        }
        return self._question(
            RESIDUAL, vectors, expects, "products of all markers with residuals of the mixed "
            "model, and their lengths, over all tested people", sum=at,
        )  # fmt: skip

    def solution(self, vectors: Arrays, heritability: float, columns: dict[int, int]) -> Question:
        """columns: of the design, by kind of chromosome."""
        bound, systems = self.asker.n / (1 - heritability), vectors["trait"].shape[1]
        expects = {f"along {k}": Spec((p, systems), "float", bound) for k, p in columns.items()}
        return self._question(
            SOLUTION, vectors, expects, "products of covariates with the solution of the mixed "
            "model, over all tested people; cohorts keep it for their people",
        )  # fmt: skip

    def test(self, chunk: Chunk, columns: int, given: Arrays, h: float, missing: bool) -> Question:
        """given: 'frequency' and 'column' of the solution, by variant."""
        k, n, study = len(chunk.index), self.asker.n, self.asker.study
        expects = {
            "cross": Spec((k, columns), "float", n),
            "score": Spec((k,), "float", n / (1 - h)),
            "square": Spec((k,), "float", n),
            "people": Spec((k,), "int", self.asker.people),
        }
        expects |= {WITHHELD: Spec((k,), "int", 1)} if missing and study.limits.least_cell else {}
        return Question(
            TEST,
            {**chunk.arrays(), **given},
            self.asker._test(chunk, missing=missing),
            expects,
            reveals="per variant, its product with the solution of the mixed model, with "
            "covariates, its variance, and how many have a call, over all people",
            protection=rounded(study),
        )
