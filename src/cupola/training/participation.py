"""Who takes part in a round: a pure function of (seed, round)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cupola.base.randomness import generator, permutation
from cupola.errors import PlanError

if TYPE_CHECKING:
    from cupola.training.choices import Participation, Sum


def draw(choice: Participation, sites: int, seed: int, round: int) -> list[int]:
    """The sites asked in this round, sorted. Costs as much as the sites drawn, not as all sites."""
    if choice.kind == "all":
        return list(range(sites))
    if choice.kind == "at-most-once":
        count = choice.count or 1
        order = _order(seed, sites)
        return np.sort(order[(round - 1) * count : round * count]).tolist()
    if choice.kind == "rotation":
        start = (round - 1) % separation(choice, sites) * (choice.count or 1)
        return np.sort(_order(seed, sites)[start : start + (choice.count or 1)]).tolist()
    random = generator(seed, "participation", round)
    if choice.kind == "poisson":
        count = int(random.binomial(sites, choice.fraction or 0.0))
    else:
        count = round_half_up(expected_sites(choice, sites))
        if count > sites:
            raise PlanError(f"participation.count = {count}, but there are {sites} sites")
    return np.sort(random.choice(sites, count, replace=False, shuffle=False)).tolist()


def require_sites(choice: Participation, sites: int, rounds: int, total: Sum) -> None:
    """Refuse rounds that ask more sites than there are, or too few to tell a masked sum of."""
    many, asked = expected_sites(choice, sites), choice.count or 0
    if total.masked and choice.kind != "poisson" and many < total.minimum:
        there = f"a round asks {many:g} of" if many < sites else "there are"
        raise PlanError(
            f"sum.minimum = {total.minimum}, but {there} {sites} sites: no masked sum can be told"
        )
    if asked > sites and choice.kind in ("fraction", "rotation"):
        raise PlanError(f"participation.count = {asked}, but there are {sites} sites")
    if choice.kind == "at-most-once" and rounds * asked > sites:
        raise PlanError(
            f"at-most-once: {rounds} rounds of {asked} sites need {rounds * asked} sites, there "
            f"are {sites}"
        )


def expected_sites(choice: Participation, sites: int) -> float:
    """Sites asked in a round: exactly, or on average where each is drawn by itself."""
    if choice.kind == "all":
        return sites
    if choice.count is not None:
        return choice.count
    many = sites * (choice.fraction or 0.0)
    return many if choice.kind == "poisson" else max(1, round_half_up(many))


def separation(choice: Participation, sites: int) -> int:
    """Rounds from one participation of a site to its next: at least so many, by construction."""
    if choice.kind == "rotation":
        return max(1, sites // (choice.count or 1))
    return 1


def most_participations(choice: Participation, sites: int, rounds: int) -> int:
    """How often any one site can take part in so many rounds."""
    if choice.kind == "at-most-once":
        return min(1, rounds)
    return -(-rounds // separation(choice, sites))


def round_half_up(value: float) -> int:
    return int(np.floor(value + 0.5))


@lru_cache(maxsize=2)
def _order(seed: int, sites: int) -> np.ndarray:
    return permutation(seed, "at most once", 0, 0, sites)
