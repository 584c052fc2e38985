"""DP-FTRL, differentially private follow-the-regularised-leader (Kairouz, McMahan, Song, Thakkar,
Thakurta and Xu 2021).

Like central, but the sum of all rounds so far gets noise that is correlated from round to round, so
that little of it adds up (see cupola.privacy.matrix). It needs no sampling of sites, but a pattern
of participation, which sites enforce: one charge covers a site's answers in a period of rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.errors import FederationError, PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Declined, Question
from cupola.federation.program import State
from cupola.privacy.events import Event, Gaussian
from cupola.privacy.matrix import find as find_matrix
from cupola.privacy.noise import noise_scale, round_to_grid, source
from cupola.privacy.persample.rules import ROUNDING
from cupola.training.choices import Participation, Privacy
from cupola.training.mechanisms.coordinator import (
    Coordinator,
    Moved,
    flat_model,
    flat_total,
    split,
)
from cupola.training.mechanisms.site_level import ServerNoise
from cupola.training.participation import most_participations, separation
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training


def pattern_of(
    privacy: Privacy, participation: Participation, sites: int, rounds: int, round: int
) -> dict[str, int]:
    """What a site may rely on in the period that holds this round: steps in it, how often it is
    asked at most, how many rounds lie between, and the round before the period."""
    whole = privacy.restart or rounds
    after = (round - 1) // whole * whole
    steps = min(whole, rounds - after)
    return {
        "after": after,
        "steps": steps,
        "participations": most_participations(participation, sites, steps),
        "separation": separation(participation, sites),
    }


@dataclass(frozen=True)
class FtrlCoordinator(Coordinator):
    """Follows the noised sum of all updates. seed: there must be one, since noise comes again."""

    def pattern(self, round: int) -> dict[str, int]:
        return pattern_of(self.privacy, self.participation, self.sites, self.rounds, round)

    def step(self, training: Training, state: State, total: Total, round: int) -> Moved:
        """Noise comes also where nobody answered."""
        return self.follow(state, total, round, training.server_lr(round)), {}

    def follow(self, state: State, total: Total, round: int, lr: float) -> Arrays:
        """model = start of the period - lr * (noised sum of its updates), with momentum.

        sum += update; velocity = momentum * velocity + sum + noise; model = start - lr * velocity.
        """
        pattern, model = self.pattern(round), flat_model(state)
        step = round - pattern["after"]
        start, kept, velocity = (
            state.arrays.get(f"ftrl/{what}", np.zeros(0)) for what in ("start", "sum", "velocity")
        )
        if step == 1:
            start, kept, velocity = model, np.zeros_like(model), np.zeros_like(model)
        kept = kept + flat_total(total, state) / self.expected
        noised = self.by_trainers(self._prefix(kept, step, pattern), state)
        velocity = self.server.momentum * velocity + noised
        moved = split(start - lr * velocity, state)
        return {
            **{f"model/{n}": a.astype(state.arrays[f"model/{n}"].dtype) for n, a in moved.items()},
            "ftrl/start": start,
            "ftrl/sum": kept,
            "ftrl/velocity": velocity,
        }

    def _prefix(self, kept: np.ndarray, step: int, pattern: dict[str, int]) -> np.ndarray:
        noise, after = self.privacy.noise_multiplier or 0.0, pattern["after"]
        if noise == 0:
            return kept

        if self.seed is None:
            raise FederationError("dp-ftrl draws the same noise again: it needs a seed to keep")

        def draw(number: int) -> np.ndarray:
            random = source(self.seed, f"ftrl noise {number}", after)
            return random.normals(len(kept))

        matrix = find_matrix(self.privacy.matrix)
        sensitivity = self.privacy.clip * (1 + ROUNDING) / self.expected
        # All releases of a period are rounded to the grid.
        deviation = noise_scale(sensitivity, noise, 2 * pattern["steps"] * len(kept))
        return round_to_grid(kept, deviation * matrix.noise(step, draw), deviation)

    def mean(self, state: State, total: Total, round: int) -> tuple[Arrays, dict[str, float]]:
        """For an auditor: what the first round of a period adds to the sum, before its noise."""
        return split(self.follow(state, total, round, 1.0)["ftrl/sum"], state), {}

    def watched(
        self, training: Training, rounds: Sequence[tuple[State, int]], totals: Sequence[Total]
    ) -> Iterator[tuple[np.ndarray, float | None]]:
        """How far the model has come after each round."""
        state = rounds[0][0]
        start = flat_model(state)
        for (_, round), total in zip(rounds, totals):
            state = state.next(self.follow(state, total, round, training.server_lr(round)))
            yield flat_model(state) - start, None


class DpFtrl(ServerNoise):
    """Noise that is correlated over rounds, for a pattern of participation that sites enforce."""

    name = "dp-ftrl"
    keys = frozenset({"noise_multiplier", "restart"})
    with_methods = False  # the model is a function of the noised sum of all updates
    coordinator = FtrlCoordinator

    def check(self, training: Training) -> None:
        if training.server.upcycle is not None:
            raise PlanError(
                f"server.upcycle with {self.key}: its model is a function of the noised sum of all "
                "updates, which has no place for a free step; use 'central'"
            )
        super().check(training)
        local, server, kind = training.local, training.server, training.participation.kind
        if kind not in ("at-most-once", "rotation", "all"):
            raise PlanError(
                f"{self.key} needs participation.kind = 'at-most-once', 'rotation' or 'all': its "
                f"noise holds for a pattern, and '{kind}' keeps none"
            )
        fixed = (server.schedule is None or server.schedule.kind == "constant") and (
            local.send == "change" or local.schedule.kind == "constant"
        )
        if server.optimizer != "sgd" or server.weight_decay or not fixed:
            raise PlanError(
                f"{self.key} takes server.optimizer = 'sgd' with momentum, without weight decay or "
                "a schedule: the model is a function of the noised sum of all updates"
            )
        rounds = training.training_rounds
        if self.privacy.matrix.startswith("tree") and not self.privacy.restart and rounds > 2**20:
            raise PlanError(f"{self.key}: set privacy.restart; {rounds} rounds make a deep tree")

    def options(self, training: Training, round: int) -> dict[str, Any]:
        choice, sites, rounds = training.participation, training.sites, training.training_rounds
        return {"pattern": pattern_of(self.privacy, choice, sites, rounds, round)}

    def run_events(self, choice: Participation, sites: int, rounds: int) -> tuple[Event, ...]:
        noise, whole = self.privacy.noise_multiplier or 0.0, self.privacy.restart or rounds
        patterns = (
            pattern_of(self.privacy, choice, sites, rounds, first)
            for first in range(1, rounds + 1, whole)
        )
        events = [period_event(self.privacy.matrix, noise, **pattern) for pattern in patterns]
        if choice.kind == "at-most-once":
            return (min(events, key=lambda event: event.noise),)  # nobody is in two periods
        return tuple(events)

    def accounted(
        self, choice: Participation, sites: int, rounds: int, done: int
    ) -> tuple[int, int]:
        pattern = pattern_of(self.privacy, choice, sites, rounds, 1)
        periods = -(-done // (self.privacy.restart or rounds))
        return pattern["participations"] * periods, pattern["separation"]

    def site_events(self, turn: Turn) -> tuple[Event, ...]:
        """One event covers a site's answers in a period of rounds, if they keep to the pattern; a
        question that breaks it is not answered."""
        question, pattern = turn.question, turn.question.options["pattern"]
        asked = [r for r in _asked_before(turn) if r > pattern["after"]]
        if not asked:
            return (period_event(self.privacy.matrix, self.noise, **pattern),)
        if not np.array_equal(turn.site.recall(question).get("paid", ()), self._paid_for(question)):
            raise Declined("the participation pattern is not the one that was paid for")
        too_often = len(asked) >= pattern["participations"]
        if too_often or question.round - asked[-1] < pattern["separation"]:
            raise Declined("asked again before the participation pattern allows it")
        return ()

    def kept(self, turn: Turn) -> Arrays:
        """Rounds that were answered, and what was paid for with the first answer of a period."""
        asked = np.array([*_asked_before(turn), turn.question.round])
        return {"asked": asked, "paid": self._paid_for(turn.question)}

    def _paid_for(self, question: Question) -> np.ndarray:
        privacy, pattern = self.privacy, question.options["pattern"]
        facts = [privacy.matrix, privacy.noise_multiplier, privacy.clip, pattern]
        return np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)

    def canary_order(self, rounds: int) -> list[int]:
        """Contributions of one direction add up: only the last one is of the other kind."""
        return [0] * (rounds - 1) + [1]


def _asked_before(turn: Turn) -> list[int]:
    """Rounds in which this site took part."""
    return [int(r) for r in turn.site.recall(turn.question).get("asked", ())]


@lru_cache(maxsize=1024)
def period_event(
    matrix: str, noise: float, steps: int, participations: int, separation: int, after: int = 0
) -> Gaussian:
    """A period as one Gaussian: the noise of each draw over the sensitivity."""
    del after
    return Gaussian(noise / find_matrix(matrix).sensitivity(steps, participations, separation))
