"""Central differential privacy for federated averaging (McMahan, Ramage, Talwar and Zhang 2018).

Every site's update is clipped; the coordinator adds fresh Gaussian noise to every round's sum.
Protects whole sites from those who see models, if the coordinator is trusted. The clip may follow
a quantile of the updates' norms (Andrew, Thakkar, McMahan and Ramaswamy 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from cupola.errors import PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Spec
from cupola.federation.program import State
from cupola.privacy.events import Event, Gaussian, SampledGaussian
from cupola.privacy.noise import Source, add_noise, source
from cupola.privacy.persample.rules import ROUNDING
from cupola.training.choices import Participation
from cupola.training.mechanisms.coordinator import SiteCoordinator, flat_total, split
from cupola.training.mechanisms.site_level import ServerNoise
from cupola.training.participation import expected_sites, most_participations
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training


@dataclass(frozen=True)
class CentralCoordinator(SiteCoordinator):
    """Noise on every sum, and on the count of short updates where the clip moves."""

    def mean(self, state: State, total: Total, round: int) -> tuple[Arrays, dict[str, float]]:
        clip, random = self.clip(state), source(self.seed, "coordinator noise", round)
        sensitivity = clip * (1 + ROUNDING)
        noised = add_noise(flat_total(total, state), sensitivity, self.update_noise, random)
        update = split(self.by_trainers(noised / self.expected, state), state)
        return update, {} if self.privacy.quantile is None else self._next_clip(clip, total, random)

    @property
    def counts_noise(self) -> float:
        """Standard deviation of the noise on the count of updates below the clip."""
        privacy = self.privacy
        return privacy.counts_noise or max(self.expected / 20, privacy.noise_multiplier or 0.0)

    @property
    def update_noise(self) -> float:
        """Noise multiplier of the sum itself.

        With a moving clip the count (halves, so that its sensitivity is 1/2) is released as well;
        the two together are one Gaussian of multiplier `noise` (Andrew et al. 2021, theorem 1).
        """
        noise = self.privacy.noise_multiplier or 0.0
        if self.privacy.quantile is None or noise == 0:
            return noise
        return (noise**-2 - (2 * self.counts_noise) ** -2) ** -0.5

    def _next_clip(self, clip: float, total: Total, random: Source) -> dict[str, float]:
        halves = np.atleast_1d(total.arrays.get("below", 0.0))
        deviation = self.counts_noise if self.privacy.noise_multiplier else 0.0
        noised = float(add_noise(halves, 0.5, 2 * deviation, random)[0])
        below = noised / self.expected + 0.5
        rate, quantile = self.privacy.clip_rate, self.privacy.quantile or 0.0
        return {"clip": clip * math.exp(-rate * (min(max(below, 0.0), 1.0) - quantile))}


class Central(ServerNoise):
    """Fresh noise in every round."""

    name = "central"
    keys = frozenset({"noise_multiplier", "quantile", "counts_noise"})
    coordinator = CentralCoordinator

    def check(self, training: Training) -> None:
        super().check(training)
        if self.privacy.quantile is None or not self.privacy.noise_multiplier:
            return
        least = self.privacy.noise_multiplier / 2
        given = CentralCoordinator.of(training).counts_noise
        if given <= least:
            raise PlanError(
                f"privacy.counts_noise = {given:.3g} must be above {least:.3g} (half of the noise "
                "multiplier), or the counts alone spend more than the target"
            )

    def expects(self) -> dict[str, Spec]:
        return {} if self.privacy.quantile is None else {"below": Spec(())}

    def site_events(self, turn: Turn) -> tuple[Event, ...]:  # noqa: ARG002
        return (Gaussian(self.noise),)

    def run_events(self, choice: Participation, sites: int, rounds: int) -> tuple[Event, ...]:
        """Amplification by sampling is claimed where the coordinator draws sites in secret:
        'poisson', and for replaced sites 'fraction'."""
        noise = self.privacy.noise_multiplier or 0.0
        if not self.samples_in_secret(choice):
            return (Gaussian(noise, most_participations(choice, sites, rounds)),)
        if choice.kind == "poisson":
            return (SampledGaussian(choice.fraction or 0.0, noise, rounds),)
        share = expected_sites(choice, sites) / sites
        return (SampledGaussian(share, noise, rounds, "without-replacement"),)

    def samples_in_secret(self, choice: Participation) -> bool:
        replaced = self.privacy.neighbours == "replace-one"
        return choice.kind == "poisson" or (choice.kind == "fraction" and replaced)

    def warnings(self, training: Training) -> list[str]:
        if not self.samples_in_secret(training.participation):
            return []
        return [
            "who took part in which round must stay secret: keep ledger and history to yourself"
        ]
