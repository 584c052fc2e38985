"""Parts of one computation side by side on threads that are kept from round to round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

Result = TypeVar("Result")


def side_by_side(
    compute: Callable[[int], Result], parts: Sequence[int], workers: int
) -> list[Result]:
    """compute(part) for every part, in their order."""
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
