"""Objective perturbation (Chaudhuri, Monteleoni and Sarwate 2011): a random linear term in a convex
local problem, whose exact solution is released (see cupola.privacy.perturbation)."""

from __future__ import annotations

import numpy as np

from cupola.privacy.events import Approximate, Event
from cupola.privacy.noise import Source
from cupola.privacy.perturbation import LOST, Logistic, Release, objective_perturbation
from cupola.training.choices import Local, Privacy
from cupola.training.mechanisms.convex import Convex


class ObjectivePerturbation(Convex):
    """Noise in the objective. It has no multiplier, but an epsilon of each answer."""

    name = "objective"
    keys = frozenset({"answer_epsilon"})
    strength = "answer_epsilon"

    @property
    def answer_epsilon(self) -> float:
        assert self.privacy.answer_epsilon is not None, "the coordinator finds it before it asks"
        return self.privacy.answer_epsilon

    def with_noise(self, noise: float) -> Privacy:
        return super().with_noise(1 / noise)

    def answer_events(self, local: Local, n: int, problems: int = 1) -> tuple[Event, ...]:  # noqa: ARG002
        return (Approximate(self.answer_epsilon / problems, LOST, problems, "replace-one"),)

    def released(
        self, problem: Logistic, x: np.ndarray, y: np.ndarray, start: np.ndarray, random: Source
    ) -> Release:
        each = self.answer_epsilon
        return objective_perturbation(problem, x, y, start, epsilon=each, rng=random)

    def describe(self, clip: float) -> str:
        return f"{self.name}, epsilon {self.answer_epsilon:.4g} an answer, clip {clip:.4g}"
