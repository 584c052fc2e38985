"""Site-level differential privacy (in the field: client-level, user-level): whole sites are hidden.

A site's whole update is clipped to one norm; how noise gets into the sum is each mechanism's own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cupola.errors import PlanError
from cupola.federation.message import Arrays, Question
from cupola.federation.site import Charge
from cupola.privacy.events import Event
from cupola.privacy.persample.rules import ROUNDING
from cupola.secure.encoding import entry
from cupola.training.choices import Participation, Privacy
from cupola.training.masking_bounds import bounded_training
from cupola.training.mechanisms.base import Mechanism
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training


BITS = 32  # of a clipped number in a masked sum, unless sum.bits says otherwise


class SiteLevel(Mechanism):
    """Sites send one clipped update each, all of equal weight, and nothing beside it."""

    unit = "site"
    hides = "every whole site, from everybody who sees models but the coordinator"

    def check(self, training: Training) -> None:
        local = training.local
        if local.weighting != "uniform":
            raise PlanError(
                f"{self.key} needs local.weighting = 'uniform': with weights by samples the "
                "largest site would count more than the noise hides"
            )
        if local.control_variates or local.send == "normalised":
            raise PlanError(
                f"{self.key} protects the update alone; use local.send = 'change', no variates"
            )

    def accounted(
        self, choice: Participation, sites: int, rounds: int, done: int
    ) -> tuple[int, int]:
        """How often a site may have answered in the first `done` rounds by what is accounted, and
        how many rounds lie between."""
        del done
        events = self.run_events(choice, sites, rounds)
        return max(1, sum(getattr(event, "count", 1) for event in events)), 1


class ServerNoise(SiteLevel):
    """Sites clip, the coordinator adds the noise: it is trusted with the sum."""

    by_coordinator = True
    stackable = True
    sends = sends_alone = "clipped updates, before its noise"

    def check(self, training: Training) -> None:
        super().check(training)
        if training.sum.masked and not any(step.last for step in training.transforms):
            _require_fine(self, training)

    def bounds(self, question: Question, training: Training, clip: float) -> Question:
        choice = training.sum
        change = min(choice.change, clip * (1 + ROUNDING))
        return bounded_training(question, choice, training.local, change, choice.bits or BITS)

    def charge(self, turn: Turn) -> Charge | None:
        return Charge(self.site_events(turn), unit="site", trusts="coordinator")

    def site_events(self, turn: Turn) -> tuple[Event, ...]:
        """What this answer of a site tells about it, in the models that the coordinator shows."""
        raise NotImplementedError

    def at_site(self, turn: Turn, update: list[Tensor]) -> Arrays:
        clipped, below = clipped_update(update, self.privacy)
        return below | super().at_site(turn, clipped)

    def against(self, training: Training) -> str:  # noqa: ARG002
        return "everybody who sees models, but not the coordinator"

    def samples_in_secret(self, choice: Participation) -> bool:  # noqa: ARG002
        """Whether the promise rests on nobody knowing who took part."""
        return False

    def canary_order(self, rounds: int) -> list[int]:
        """Which of an auditor's two crafted sites takes part in each round: in turn, so that noise
        which is used again cancels and shows them."""
        return [i % 2 for i in range(rounds)]


def _require_fine(mechanism: ServerNoise, training: Training) -> None:
    """Refuse masked sums so coarse that a clipped update, rounded to their grid, is longer than its
    noise allows for: by half a step in each of its numbers, at most."""
    choice, clip, bits = training.sum, mechanism.privacy.clip, training.sum.bits or BITS
    sites = training.federation or training.sites
    place = entry("model", (), "float", min(choice.change, clip * (1 + ROUNDING)), sites, bits)
    model = training.problem.build()
    numbers = sum(p.numel() for p in model.parameters() if p.requires_grad)
    step = math.ldexp(1.0, -place.fraction)
    step *= 1 if mechanism.privacy.quantile is None else 2  # as the clip moves
    longer = step / 2 * math.sqrt(numbers) / clip
    if longer > ROUNDING / 2 and mechanism.privacy.noise_multiplier:
        raise PlanError(
            f"{mechanism.key} with sum.bits = {bits}: rounding to so few bits can make an update "
            f"of {numbers:,} numbers longer by {longer:.2g} of its clip, and the noise has room "
            f"for {ROUNDING / 2:g}: raise sum.bits, or use transforms = [{{ kind = 'quantise' }}]"
        )


def clipped_update(change: Sequence[Tensor], privacy: Privacy) -> tuple[list[Tensor], Arrays]:
    """A site's update scaled down to the clip, and whether it was below it (a half or minus a
    half) where the clip follows a quantile."""
    norm = float(torch.stack([c.double().norm() for c in change]).norm())
    factor = min(1.0, privacy.clip / norm) if norm > 0 else 1.0
    below: Arrays = {}
    if privacy.quantile is not None:
        below["below"] = np.array(0.5 if norm <= privacy.clip else -0.5)
    if factor == 1:
        return list(change), below
    # In float64: a float32 factor below 1e-38 is rounded by as much as itself.
    return [(c.double() * factor).to(c.dtype) for c in change], below
