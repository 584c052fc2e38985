"""Processor cores: how many there are, one for each worker, and computing side by side."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import TypeVar

Result = TypeVar("Result")


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_core_each() -> Iterator[None]:
    """One core per operation while several workers compute side by side."""
    if "torch" not in sys.modules:  # nobody computes with it
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def side_by_side(
    compute: Callable[[int], Result], parts: Sequence[int], workers: int
) -> list[Result]:
    """compute(part) for every part, in their order, on threads kept from round to round."""
    if workers == 1 or len(parts) == 1:
        return [compute(part) for part in parts]
    if len(parts) <= workers:
        others = [_pool(workers).submit(compute, part) for part in parts[1:]]
        results = [compute(parts[0])]  # this thread takes a share, too, instead of waiting,
        for part, other in zip(parts[1:], others):  # and what others have not begun by then
            results.append(compute(part) if other.cancel() else other.result())
        return results
    return list(_pool(workers).map(compute, parts))


@lru_cache(maxsize=4)
def _pool(workers: int) -> ThreadPoolExecutor:
    """Threads kept for the next round: starting them takes as long as a small round."""
    return ThreadPoolExecutor(workers, thread_name_prefix="together")
