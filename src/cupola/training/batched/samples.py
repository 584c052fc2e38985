"""The samples of sites that train together, one after the other, kept from round to round."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cupola.data.dataset import Dataset
from cupola.training.workspace import Workspace

KEPT_BYTES = 512 << 20  # samples are kept from round to round up to this size


class Samples(NamedTuple):
    """Model-ready samples that hold those of some sites; first: where each site's begin."""

    x: Tensor
    y: Tensor
    first: list[int]


def samples_of(space: Workspace, data: Sequence[Dataset]) -> Samples:
    """Samples of these sites and of others: those that come again are not prepared again."""
    if "samples" not in space.cache or space.cache["samples"].stale:
        space.cache["samples"] = Pool()
    pool: Pool = space.cache["samples"]
    if not all(id(d) in pool.first for d in data):
        new = [d for d in data if id(d) not in pool.first]
        if not pool.add(space, new, KEPT_BYTES):
            pool = space.cache["samples"] = Pool()  # too much to keep: this cohort's alone
            pool.add(space, data, math.inf)
            if pool.bytes > KEPT_BYTES:
                del space.cache["samples"]
    return Samples(pool.x, pool.y, [pool.first[id(d)] for d in data])


class Pool:
    """Samples of many sites one after the other, as long as others hold the sites' data, too.

    Sites whose data are made when they are asked do not come again with the same data: once any
    are gone, the pool is stale (and their ids may be given to others).
    """

    def __init__(self) -> None:
        self.x, self.y = torch.empty(0), torch.empty(0)
        self.alive: list[weakref.ref[Dataset]] = []
        self.first: dict[int, int] = {}
        self._gone: list[weakref.ref[Dataset]] = []

    @property
    def stale(self) -> bool:
        return bool(self._gone)

    @property
    def bytes(self) -> int:
        return self.x.numel() * self.x.element_size()

    def add(self, space: Workspace, data: Sequence[Dataset], limit: float) -> bool:
        """Take these in, unless it becomes too much."""
        pairs = [space.batch(d, slice(None)) for d in data]
        more = sum(x.numel() * x.element_size() for x, _ in pairs)
        if self.bytes + more > limit:
            return False
        places = np.cumsum([len(self.x), *(len(x) for x, _ in pairs)])
        kept = [(self.x, self.y)] if self.alive else []
        self.x = torch.cat([x for x, _ in (*kept, *pairs)])
        self.y = torch.cat([y for _, y in (*kept, *pairs)])
        self.alive += [weakref.ref(d, self._gone.append) for d in data]
        self.first |= {id(d): int(place) for d, place in zip(data, places)}
        return True
