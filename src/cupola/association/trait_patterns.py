"""Several traits of the same people: who would be told apart by the differences of their totals.

The totals of two traits differ by the people who have one and not the other, and with binary traits
by those who are cases of one only. Whatever is added and subtracted, it is sums over groups of
people who are alike in all traits: missing, control or case; of a quantitative trait, known or not.
So a group of fewer than `limits.least_cell` people takes no part, in none of the traits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def few_alike(traits: Sequence[np.ndarray], alike: np.ndarray, least: int) -> np.ndarray:
    """Who is in a group of fewer than `least`, bool. traits: of everybody, NaN where missing.
    alike: (people, b), what else groups people; only those with a True in its first column, who
    are loaded, are in any group."""
    loaded = alike[:, 0]
    kinds = [_kinds(trait, loaded) for trait in traits]
    whole = np.column_stack([*kinds, alike[:, 1:].astype(np.int64)])[loaded]
    _, group, size = np.unique(whole, axis=0, return_inverse=True, return_counts=True)
    found = np.zeros(len(loaded), bool)
    found[loaded] = size[group.reshape(-1)] < least
    return found


def _kinds(trait: np.ndarray, loaded: np.ndarray) -> np.ndarray:
    """-1 missing; else the value of a trait that looks binary, 1 of any other."""
    known = ~np.isnan(trait)
    binary = np.isin(trait[known & loaded], (0.0, 1.0, 2.0)).all()
    found = np.full(len(trait), -1)
    found[known] = trait[known] if binary else 1
    return found
