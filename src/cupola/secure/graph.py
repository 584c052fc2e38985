"""Who masks with whom, and how many must agree: the numbers behind pairwise masks.

Every site draws `picks` others at random, itself, from the operating system, after it has seen the
signed keys of the whole cohort: it deals the shares of its secrets to them, and masks with them and
with everybody who drew it. Nobody else's randomness can therefore surround a site by colluders:
neither the coordinator, nor sites that choose their keys last, nor a roster made for the purpose.
Few sites mask with all others, so nothing is drawn.

The promises, for m sites of which c (the roster's minimum - 2) obey a dishonest coordinator:

- *One set of survivors.* A site helps to unmask once `quorum` sites have signed the same set, and
  signs one set only. Two sets would need 2 * quorum <= m + c signatures, so quorum is
  floor((m + c) / 2) + 1, and no share of a site's key and of its own mask are both told.
- *Secrets stay shared.* Colluders hold fewer than `threshold` of a site's shares.
- *One total* (Bell et al. 2020, for drop-outs that the coordinator invents after it has seen the
  graph). A site's own mask comes off only if `threshold` holders help, so at least
  threshold - 1 - colluders of the honest sites it drew survive, and the masks it shares with them
  stay on until all of them are added. To read a part of the total, the coordinator needs a set of
  at most half of the sites in which each has drawn that many others of the same set: over all such
  sets, and with the colluders a site may have drawn, the probability is below 2^-SECRET.
- *Drop-outs.* If a share DROPS of the sites is gone before unmasking, at random, the probability
  that some site's mask cannot be restored is below 2^-REPAIR. With all others drawn, any
  m - quorum may be gone.
"""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import gammaln

from cupola.errors import FederationError

SECRET, REPAIR, DROPS = 64, 20, 0.2


@dataclass(frozen=True)
class Graph:
    """picks: how many others a site draws. threshold: shares (its own included) that restore its
    secrets. quorum: signatures under one set of survivors."""

    sites: int
    picks: int
    threshold: int
    quorum: int

    @property
    def complete(self) -> bool:
        return self.picks == self.sites - 1


@lru_cache(maxsize=1024)
def graph(sites: int, minimum: int) -> Graph:
    """The numbers for a cohort. minimum: of sites in a total; all but two of so many may collude.

    Sparse only where a site then masks with fewer others: it draws `picks` and is drawn by about
    as many.
    """
    if not 2 <= minimum <= sites:
        raise FederationError(
            f"pairwise masks need at least {max(2, minimum)} sites (the roster's minimum), "
            f"not {sites}"
        )
    colluders = minimum - 2
    quorum = (sites + colluders) // 2 + 1
    most = (sites - 1) // 2
    first, last = 1, min(8, most)  # the smallest number that is enough: doubled, then halved
    while last < most and _threshold(sites, colluders, last) is None:
        first, last = last + 1, min(2 * last, most)
    if last < 1 or _threshold(sites, colluders, last) is None:
        return Graph(sites, sites - 1, quorum, quorum)
    while first < last:
        middle = (first + last) // 2
        if _threshold(sites, colluders, middle) is None:
            first = middle + 1
        else:
            last = middle
    threshold = _threshold(sites, colluders, last)
    assert threshold is not None
    return Graph(sites, last, threshold, quorum)


def draw(others: list[int], picks: int) -> list[int]:
    """A site's picks, in increasing order; the draw is the operating system's."""
    if picks >= len(others):
        return sorted(others)
    return sorted(secrets.SystemRandom().sample(others, picks))


def _threshold(sites: int, colluders: int, picks: int) -> int | None:
    """The smallest safe threshold at so many picks; None if it is too high for drop-outs."""
    caught = _at_least(sites - 1, colluders, picks)  # log2 P[at least j colluders are drawn]
    bad = int(np.argmax(np.append(caught[1:], -np.inf) <= -SECRET))
    sets = np.arange(1, sites // 2 + 1)
    inside = np.stack([_at_least(sites - 1, size - 1, picks) for size in sets.tolist()])
    # Rows: sizes of a set; columns: how many of its own each of its members has drawn.
    exponents = _choose(sites, sets)[:, None] + sets[:, None] * inside
    parts = np.logaddexp2.reduce(exponents, axis=0)
    safe = np.flatnonzero(parts <= -SECRET)
    if not safe.size:
        return None
    threshold = 1 + bad + int(safe[0])
    gone = math.ceil(DROPS * sites)
    lost = _at_least(sites - 1, gone, picks)  # too many of the holders gone
    spare = picks - threshold
    if spare < 0 or (spare < picks and lost[spare + 1] + math.log2(sites) > -REPAIR):
        return None
    return threshold


def _at_least(others: int, marked: int, picks: int) -> np.ndarray:
    """log2 of P[at least j of the picks are marked], j from 0 to picks (hypergeometric)."""
    j = np.arange(picks + 1)
    with np.errstate(invalid="ignore"):
        exact = _choose(marked, j) + _choose(others - marked, picks - j) - _choose(others, picks)
    return np.minimum(np.logaddexp2.accumulate(exact[::-1])[::-1], 0.0)


def _choose(n: int, k: np.ndarray | int) -> np.ndarray:
    """log2 of the binomial coefficient; -inf where it is 0."""
    k = np.asarray(k, np.float64)
    inside = (k >= 0) & (k <= n)
    safe = np.where(inside, k, 0)
    value = (gammaln(n + 1) - gammaln(safe + 1) - gammaln(n - safe + 1)) / math.log(2)
    return np.where(inside, value, -np.inf)
