"""Output perturbation (Chaudhuri, Monteleoni and Sarwate 2011): Gaussian noise on the exact
solution of a convex local problem, over its sensitivity (see cupola.privacy.perturbation)."""

from __future__ import annotations

import numpy as np

from cupola.privacy.events import Event, Gaussian
from cupola.privacy.noise import Source
from cupola.privacy.perturbation import Logistic, Release, output_perturbation
from cupola.training.choices import Local
from cupola.training.mechanisms.convex import Convex


class OutputPerturbation(Convex):
    """Noise on the solution. noise: its multiplier, over the solution's sensitivity."""

    name = "output"

    def answer_events(self, local: Local, n: int, problems: int = 1) -> tuple[Event, ...]:  # noqa: ARG002
        return (Gaussian(self.noise, problems, "replace-one"),)

    def released(
        self, problem: Logistic, x: np.ndarray, y: np.ndarray, start: np.ndarray, random: Source
    ) -> Release:
        return output_perturbation(
            problem, x, y, start, noise=self.noise, rng=random, clip=self.privacy.clip
        )
