"""Distributed differential privacy (Kairouz, Liu and Steinke 2021): noise in shares of the sites.

A total holds enough noise because every site adds its share itself (cupola.privacy.distributed).

Nobody is trusted with a sum without noise, so a site does not take the coordinator's word either:
how many shares hide it follows from the minimum in the roster that it has pinned, and it answers
only inside a masked sum that keeps every bit of its answer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch import Tensor

from cupola.errors import PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Declined, Question
from cupola.federation.program import State
from cupola.federation.site import Charge
from cupola.privacy.accounting import epsilon
from cupola.privacy.distributed import Shares, event
from cupola.privacy.events import Event
from cupola.privacy.noise import source
from cupola.training.choices import Participation
from cupola.training.mechanisms.coordinator import Moved, SiteCoordinator, flat_total, split
from cupola.training.mechanisms.site_level import SiteLevel
from cupola.training.participation import expected_sites, most_participations
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training

BITS = 32  # of the modulus, unless sum.bits says otherwise


@dataclass(frozen=True)
class DistributedCoordinator(SiteCoordinator):
    """Takes totals that are noised already. shares: how."""

    shares: Shares = field(kw_only=True)

    @classmethod
    def of(cls, training: Training, **more: Any) -> Self:
        privacy, parameters = training.privacy, training.problem.build().parameters()
        shares = Shares(
            privacy.clip,
            privacy.noise_multiplier or 0.0,
            training.federation or training.sites,  # masked numbers have room for as many
            training.sum.minimum,
            privacy.colluders,
            sum(p.numel() for p in parameters if p.requires_grad),
            training.sum.bits or BITS,
        )
        return super().of(training, shares=shares, **more)

    def step(self, training: Training, state: State, total: Total, round: int) -> Moved:
        if not total.sites:  # nothing was told, and nothing is learned
            return {}, {}
        return super().step(training, state, total, round)

    def mean(self, state: State, total: Total, round: int) -> tuple[Arrays, dict[str, float]]:  # noqa: ARG002
        return split(flat_total(total, state) / self.expected, state), {}


class Distributed(SiteLevel):
    """Noise in shares, inside masked sums."""

    name = "distributed"
    keys = frozenset({"noise_multiplier", "colluders"})
    noised_at_site = True
    sends = "noised updates"
    sends_alone = "updates with their own shares of the noise alone"
    hides = (
        "every whole site, from everybody, the coordinator included, if enough other sites add "
        "their shares of the noise and the masked sums hold"
    )
    coordinator = DistributedCoordinator

    def check_options(self) -> None:
        if self.privacy.accountant == "pld":
            raise ValueError("mechanism 'distributed' is accounted by Renyi divergences, not 'pld'")

    def check(self, training: Training) -> None:
        if training.levels is not None:
            raise PlanError(
                f"trainable.level with {self.key}: a site that does not train a tensor adds no "
                "share of its noise, and shares are counted over all sites of a total; use "
                "'central', or one [trainable] section for all sites"
            )
        super().check(training)
        if not training.sum.masked:
            raise PlanError(
                f"{self.key} needs sum = 'masked': a site's share of the noise is too little to "
                "hide it where its own numbers are seen; or use mechanism = 'central'"
            )

    def run_events(self, choice: Participation, sites: int, rounds: int) -> tuple[Event, ...]:
        """What the totals tell: nothing is claimed from the sampling of sites, which others see."""
        many = most_participations(choice, sites, rounds)
        return (event(self.privacy.noise_multiplier or 0.0).times(many),)

    def bounds(self, question: Question, training: Training, clip: float) -> Question:  # noqa: ARG002
        """With what a site must know of the shares."""
        shares = _shares(training)
        facts = {"sites": shares.sites, "minimum": shares.minimum, "bits": shares.bits}
        expects = {
            name: replace(spec, bound=shares.bound, bits=shares.bits)
            for name, spec in question.expects.items()
            if name.startswith("model/")
        }
        return replace(
            question,
            options={**question.options, "shares": facts},
            expects=expects,
            heaviest=1.0,
            protection=f"{question.protection}, in shares: {shares.honest} of at least "
            f"{shares.minimum} are counted on",
        )

    # At the site

    def agreed(self, turn: Turn) -> Shares:
        """How this site's answer is noised, from what it has agreed to; Declined where it has
        not."""
        roster, local, privacy = getattr(turn.site.party, "roster", None), turn.local, self.privacy
        if roster is None:
            raise Declined("a share of the noise hides nothing outside a masked sum")
        if local.weighting != "uniform" or local.send == "normalised" or local.control_variates:
            raise Declined(
                "a share of the noise hides one unweighted update, and nothing beside it"
            )
        try:
            told = turn.question.options["shares"]
            facts = {name: told[name] for name in ("sites", "minimum", "bits")}
            if not all(type(value) is int and 0 < value < 2**31 for value in facts.values()):
                raise ValueError("whole numbers")
            if facts["bits"] not in (16, 32, 64):
                raise ValueError("bits")
            shares = Shares(
                clip=privacy.clip,
                noise=privacy.noise_multiplier or 0.0,
                colluders=privacy.colluders,
                dimension=turn.space.flat.numel(),
                **facts,
            )
        except (KeyError, TypeError, ValueError, OverflowError, PlanError):
            raise Declined("the noise that was asked for is not possible") from None
        if shares.minimum > roster.minimum:
            raise Declined("a total may have fewer sites than its noise counts on")
        return shares

    def charge(self, turn: Turn) -> Charge | None:
        others = self.agreed(turn).honest - 1
        trusts = {0: "nobody", 1: "1 other site"}.get(others, f"{others} other sites")
        return Charge((event(self.privacy.noise_multiplier or 0.0),), unit="site", trusts=trusts)

    def at_site(self, turn: Turn, update: list[Tensor]) -> Arrays:
        """The update, clipped over all parameters together, on the grid and with this site's share
        of the noise: float64 multiples of the grid."""
        site, names, shares = turn.site, turn.space.names, self.agreed(turn)
        places = {place.name: place for place in site.hidden or ()}
        for name in names:
            place = places.get(f"model/{name}")
            if place is None:
                raise Declined("a share of the noise hides nothing outside a masked sum")
            if place.fraction < shares.fraction or place.bound < shares.bound:
                # Rounded or cut off on its own, a share no longer adds up to the agreed noise.
                raise Declined(f"the masked sum of 'model/{name}' is too coarse for its noise")
        flat = np.concatenate([c.detach().double().cpu().numpy().reshape(-1) for c in update])
        random = source(site.secret_seed, "noise share", turn.question.round, site.index)
        noised = shares.noised(flat, random)
        sizes = np.cumsum([c.numel() for c in update])[:-1]
        parts = zip(names, update, np.split(noised, sizes))
        return {f"model/{name}": part.reshape(tuple(c.shape)) for name, c, part in parts}

    # In words

    def against(self, training: Training) -> str:
        return (
            "everybody, coordinator included, if masks hold and at least "
            f"{_shares(training).honest - 1} others of a total's sites add their share of the "
            "noise and keep it to themselves"
        )

    def warnings(self, training: Training) -> list[str]:
        """How the noise is shared out, and what it costs to be safe."""
        shares, choice, privacy = _shares(training), training.participation, self.privacy
        found = [str(shares)]
        many = expected_sites(choice, shares.sites)
        more = math.sqrt(many / shares.honest)
        if shares.noise and more > 1.05:
            found.append(
                f"a total of {many:g} sites has {more:.2g} times the noise that epsilon needs: "
                "raise sum.minimum to as many sites as surely answer"
            )
        if shares.colluders == 0:
            found.append(
                "a site that takes part knows its own share of the noise: privacy.colluders = 1 or "
                "more hides the others from it, too"
            )
        own = event((privacy.noise_multiplier or 0.0) / shares.honest**0.5)
        alone = own.times(most_participations(choice, training.sites, training.training_rounds))
        spent = epsilon(
            (alone,), privacy.delta, neighbours=privacy.neighbours, method=privacy.accountant
        )
        found.append(
            "should the masks fail (coordinator and compensator, say, work together), a site's own "
            f"share alone gives epsilon {spent:.3g}"
        )
        return found


def _shares(training: Training) -> Shares:
    assert isinstance(training.coordinator, DistributedCoordinator)
    return training.coordinator.shares
