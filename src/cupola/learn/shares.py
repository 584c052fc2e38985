"""'distributed': noise in shares, added by the sites themselves (see cupola.privacy.distributed).

Nobody is trusted with a sum without noise, so a site does not take the coordinator's word either:
how many shares hide it follows from the minimum in the roster that it has pinned, and it answers
only inside a masked sum that keeps every bit of its answer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from cupola.errors import PlanError
from cupola.federation import Arrays, Charge, Declined, Question, SiteContext
from cupola.learn.choices import Local, Participation, Privacy
from cupola.learn.participation import expected_sites
from cupola.learn.workspace import Workspace, workspace_of
from cupola.privacy.distributed import Shares, event
from cupola.privacy.noise import source

if TYPE_CHECKING:
    from cupola.learn.training import Training

BITS = 32  # of the modulus, unless sum.bits says otherwise


# The coordinator's side


def shares_of(training: Training) -> Shares | None:
    """How the totals of this training are noised by its sites; None if they are not."""
    privacy = training.privacy
    if privacy.mechanism != "distributed":
        return None
    parameters = training.problem.build().parameters()
    return Shares(
        privacy.clip,
        privacy.noise or 0.0,
        training.federation or training.sites,  # masked numbers have room for as many
        training.sum.minimum,
        privacy.colluders,
        sum(p.numel() for p in parameters if p.requires_grad),
        training.sum.bits or BITS,
    )


def ask_for_shares(question: Question, shares: Shares) -> Question:
    """The question with what a site must know, and the bounds of what it will answer."""
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


def about_shares(shares: Shares, participation: Participation) -> list[str]:
    """How the noise is shared out, and what it costs to be safe."""
    found = [str(shares)]
    many = expected_sites(participation, shares.sites)
    more = math.sqrt(many / shares.honest)
    if shares.noise and more > 1.05:
        found.append(
            f"a total of {many:g} sites has {more:.2g} times the noise that epsilon needs: raise "
            "sum.minimum to as many sites as surely answer"
        )
    if shares.colluders == 0:
        found.append(
            "a site that takes part knows its own share of the noise: privacy.colluders = 1 or "
            "more hides the others from it, too"
        )
    return found


# The site's side


def agreed_shares(site: SiteContext, question: Question, privacy: Privacy) -> Shares:
    """How this site's answer is noised, from what it has agreed to; Declined where it has not."""
    roster = getattr(site.party, "roster", None)
    if roster is None:
        raise Declined("a share of the noise hides nothing outside a masked sum")
    local = Local.model_validate(question.options["local"])
    if local.weighting != "uniform" or local.send == "normalised" or local.control_variates:
        raise Declined("a share of the noise hides one unweighted update, and nothing beside it")
    try:
        facts = {name: question.options["shares"][name] for name in ("sites", "minimum", "bits")}
        if not all(type(value) is int and 0 < value < 2**31 for value in facts.values()):
            raise ValueError("whole numbers")
        if facts["bits"] not in (16, 32, 64):
            raise ValueError("bits")
        dimension = workspace_of(site).flat.numel()
        shares = Shares(
            clip=privacy.clip,
            noise=privacy.noise or 0.0,
            colluders=privacy.colluders,
            dimension=dimension,
            **facts,
        )
    except (KeyError, TypeError, ValueError, OverflowError, PlanError):
        raise Declined("the noise that was asked for is not possible") from None
    if shares.minimum > roster.minimum:
        raise Declined("a total may have fewer sites than its noise counts on")
    return shares


def charge_shares(site: SiteContext, question: Question, privacy: Privacy) -> Charge:
    """What an answer costs: nothing is claimed from the sampling of sites, which others see."""
    others = agreed_shares(site, question, privacy).honest - 1
    trusts = {0: "nobody", 1: "1 other site"}.get(others, f"{others} other sites")
    return Charge((event(privacy.noise or 0.0),), unit="site", trusts=trusts)


def noised_share(
    site: SiteContext,
    question: Question,
    privacy: Privacy,
    space: Workspace,
    change: Sequence[Tensor],
) -> Arrays:
    """The update, clipped over all parameters together, on the grid and with this site's share of
    the noise: float64 multiples of the grid."""
    shares = agreed_shares(site, question, privacy)
    places = {place.name: place for place in site.hidden or ()}
    for name in space.names:
        place = places.get(f"model/{name}")
        if place is None:
            raise Declined("a share of the noise hides nothing outside a masked sum")
        if place.fraction < shares.fraction or place.bound < shares.bound:
            # Rounded or cut off on its own, a share no longer adds up to the agreed noise.
            raise Declined(f"the masked sum of 'model/{name}' is too coarse for its noise")
    flat = np.concatenate([c.detach().double().cpu().numpy().reshape(-1) for c in change])
    random = source(site.secret_seed, "noise share", question.round, site.index)
    noised = shares.noised(flat, random)
    sizes = np.cumsum([c.numel() for c in change])[:-1]
    parts = zip(space.names, change, np.split(noised, sizes))
    return {f"model/{name}": part.reshape(tuple(c.shape)) for name, c, part in parts}
