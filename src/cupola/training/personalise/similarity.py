"""FSC: Euclidean distances between sparsity vectors (002, section 4.2).

All pairs, or every site to a few references: 100,000 sites then need 100,000 x references numbers.
"""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist, pdist, squareform

from cupola.base.randomness import generator
from cupola.errors import PlanError

MOST_PAIRED = 10_000  # sites whose pairs (400 MB) and linkage are still made


def pairs(vectors: np.ndarray) -> np.ndarray:
    """Distances of all pairs of vectors (n, q), each once: n (n - 1) / 2 of them."""
    require_pairs(len(vectors))
    return pdist(np.asarray(vectors, np.float64))


def require_pairs(sites: int) -> None:
    """Refuse the pairs of so many sites that they do not fit."""
    if sites > MOST_PAIRED:
        raise PlanError(
            f"{sites:,} sites: their full matrix does not fit; set personalise.references"
        )


def full_matrix(vectors: np.ndarray) -> np.ndarray:
    """Distances (n, n) of vectors (n, q)."""
    return squareform(pairs(vectors))


def draw_references(sites: int, count: int, seed: int) -> np.ndarray:
    """Reference sites, drawn by the seed."""
    return np.sort(generator(seed, "reference sites").choice(sites, min(count, sites), False))


def to_references(vectors: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Distances (n, r) of every site to the reference sites, as groups are made from them.

    A reference is at distance 0 from itself, farther from its own kind than they are from each
    other; so it takes the place of the nearest other site, or it would always stand alone.
    """
    vectors = np.asarray(vectors, np.float64)
    found = cdist(vectors, vectors[references])
    if len(vectors) > 1:
        for column, site in enumerate(references):
            others = np.delete(found[:, column], site)
            found[site, column] = others.min()
    return found
