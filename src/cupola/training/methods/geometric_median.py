"""RFA (Pillutla, Kakade and Harchaoui 2022): the geometric median of updates, here of group sums.

The point whose summed distance to all updates is least; sites that hold less than half of the
weight cannot move it far. Weiszfeld's iteration, smoothed. Sites are put into random groups, and
the median is of the groups' means, so that a group's sum can be masked: the coordinator learns the
sums of groups of `group` sites, and no site's own update (bucketing: Karimireddy, He and Jaggi
2022). A group with one bad site is a bad group, so a larger `group` hides more and bears fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from cupola.federation.message import Arrays
from cupola.training.methods.method import Method, flat

STEPS, SMALL, CLOSE = 100, 1e-8, 1e-10


class GeometricMedian(Method):
    """group: sites in a sum; 1: every site's own update is told."""

    summary = "the geometric median of sums over random groups: robust under masked sums, too"
    source = "Pillutla et al. 2022"
    asks = "groups"
    alters = "the geometric median stands for the mean"
    post_processing = True  # nothing happens at a site

    group: Annotated[int, Field(ge=1)] = 3

    def aggregate(self, updates: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
        rows = np.array([flat(update) for update in updates])
        own = np.array(weights) / sum(weights)
        point, share = np.median(rows, 0), own
        with np.errstate(over="ignore"):  # far updates are at an infinite distance
            for _ in range(STEPS):
                distance = np.linalg.norm(rows - point, axis=1)
                # Start, smoothing and end by medians: the farthest update must not set the scale.
                middle = _middle(distance, own)
                share = own / np.maximum(distance, max(SMALL * middle, 1e-300))
                share /= share.sum()
                before, point = point, share @ rows
                if np.linalg.norm(point - before) <= CLOSE * middle:
                    break
        return {
            name: np.tensordot(share, [update[name] for update in updates], 1)
            for name in updates[0]
        }


def _middle(distance: np.ndarray, own: np.ndarray) -> float:
    """The distance within which half of the weight is."""
    order = np.argsort(distance)
    return float(distance[order[np.searchsorted(np.cumsum(own[order]), 0.5 - 1e-9)]])
