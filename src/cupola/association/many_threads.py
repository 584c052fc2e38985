"""Work over variants on all cores of the process.

Each variant is computed alone, so that no result depends on how many threads there are. One pool
serves all cohorts of a simulation: they take turns in it, and never use more cores than there are.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

from cupola.base.cores import cores
from cupola.errors import PlanError

SETTING = "CUPOLA_THREADS"
_LEAST = 64  # variants that are worth a thread


def threads() -> int:
    """How many threads kernels use: CUPOLA_THREADS, or the cores that this process may use."""
    given = os.environ.get(SETTING)
    if given is None:
        return cores()
    if not given.isdecimal() or int(given) < 1:
        raise PlanError(f"{SETTING} = '{given}': name how many threads kernels may use, 1 or more")
    return int(given)


def over(count: int, work: Callable[[slice], None], least: int = _LEAST) -> None:
    """Do `work` for all of range(count), piece by piece. It must let go of Python's lock."""
    pieces = min(threads(), count // least)
    if pieces < 2:
        work(slice(0, count))
        return
    bounds = [i * count // pieces for i in range(pieces + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(bounds)]
    for done in [_pool(threads()).submit(work, part) for part in parts]:
        done.result()


@lru_cache(maxsize=1)
def _pool(size: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(size, thread_name_prefix="kernel")


if hasattr(os, "register_at_fork"):  # a child has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
