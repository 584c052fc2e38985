"""CSM: groups of similar sites (002, section 4.3; the paper does not say how they are found).

From the full matrix: average linkage, cut into a given number of groups or at the largest gap
between two successive merges. From reference distances: the widest gap is cut first, until there
are enough groups; with one reference this is sorting and cutting at the largest gaps. Two kinds of
data equally far from every reference cannot be told apart: take more references, or all pairs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import linkage
from scipy.spatial.distance import squareform

from cupola.base.randomness import generator

NARROW = 1e-3  # gaps below this share of the widest are all alike
MOST_FOUND = 64  # groups that are looked for where their number is not given


def from_matrix(distances: np.ndarray, count: int | None = None) -> np.ndarray:
    """Group (n,) of each site from distances (n, n), or from all pairs of them (see `pairs`).

    count None: found, at least 2 (one group has no gap above it).
    """
    if distances.ndim == 2:
        distances = squareform(distances, checks=False)
    n = round((1 + math.sqrt(1 + 8 * len(distances))) / 2)
    if n < 3 or (count is not None and count >= n):
        return np.arange(n) if count is not None and count >= n else np.zeros(n, np.int64)
    merges = linkage(distances, "average")
    if count is None:
        gaps = np.diff(merges[:, 2])  # behind merge i there are n - 1 - i groups
        first = max(0, n - 1 - MOST_FOUND)
        kept = first + int(np.argmax(gaps[first:]))
        count = n - 1 - kept
    return numbered(_undone(merges, n, count))


def _undone(merges: np.ndarray, n: int, count: int) -> np.ndarray:
    """Labels after the first n - count merges. (scipy's own cut merges ties beyond the count.)"""
    parent = np.arange(2 * n - 1)
    for i in range(n - count):
        left, right = int(merges[i, 0]), int(merges[i, 1])
        parent[left] = parent[right] = n + i
    for node in range(2 * n - 2, -1, -1):  # a parent has a higher number than its children
        parent[node] = parent[parent[node]]
    return parent[:n]


def from_references(distances: np.ndarray, count: int | None = None) -> np.ndarray:
    """Group (n,) of each site from distances (n, r) to references.

    Splits the group with the widest gap along any reference, again and again: n log n for each.
    count None: cut until the next gap would be narrower than the last by the largest factor.
    """
    n = len(distances)
    most = min(n, MOST_FOUND + 1 if count is None else count)
    labels = np.zeros(n, np.int64)
    history, widths = [labels], []
    heap = [(*_widest(distances, np.arange(n)), 0)]
    while len(history) < most:
        wide, column, cut, label = heapq.heappop(heap)
        if wide >= 0:  # widths are negative: the widest comes first; none is left
            break
        labels = labels.copy()
        upper = (labels == label) & (distances[:, column] > cut)
        labels[upper] = new = len(history)
        for part in (label, new):
            heapq.heappush(heap, (*_widest(distances, np.flatnonzero(labels == part)), part))
        history.append(labels)
        widths.append(-wide)
    if count is not None:
        return numbered(history[-1])
    if not widths:
        return numbered(labels)
    if len(history) < n:  # else every site stands alone, and there is no next gap
        widths.append(max(0.0, -heap[0][0]) if heap else 0.0)
    ladder = np.minimum.accumulate(widths)
    drops = ladder[:-1] / np.maximum(ladder[1:], NARROW * ladder[0])
    return numbered(history[1 + int(np.argmax(drops)) if len(drops) else 1])


def _widest(distances: np.ndarray, members: np.ndarray) -> tuple[float, int, float]:
    """Minus the widest gap among these sites, its reference, and the distance below it."""
    if len(members) < 2:
        return 0.0, 0, 0.0
    ranked = np.sort(distances[members], axis=0)
    gaps = np.diff(ranked, axis=0)
    place = np.unravel_index(int(np.argmax(gaps)), gaps.shape)
    return -float(gaps[place]), int(place[1]), float(ranked[place])


def numbered(labels: np.ndarray) -> np.ndarray:
    """The same groups, numbered in the order of their first sites."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[inverse.reshape(-1)]


def members_of(labels: Sequence[int] | np.ndarray, minimum: int) -> dict[int, list[int]]:
    """Sites (as places in `labels`) of each group that is large enough to train together."""
    found: dict[int, list[int]] = {}
    for site, group in enumerate(np.asarray(labels).tolist()):
        found.setdefault(group, []).append(site)
    return {group: sites for group, sites in sorted(found.items()) if len(sites) >= minimum}


def shuffled(labels: np.ndarray, seed: int) -> np.ndarray:
    """Random groups of the same sizes: the control."""
    return generator(seed, "random groups").permutation(labels)
