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

STEPS, SMALL = 100, 1e-8


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
        share = own
        for _ in range(STEPS):
            distance = np.linalg.norm(rows - share @ rows, axis=1)
            new = own / np.maximum(distance, SMALL * max(distance.max(), 1e-300))
            new /= new.sum()
            if np.abs(new - share).max() < 1e-10:
                break
            share = new
        return {
            name: np.tensordot(share, [update[name] for update in updates], 1)
            for name in updates[0]
        }
