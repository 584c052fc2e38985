"""What may be installed or not."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec


@lru_cache(maxsize=1)
def has_numba() -> bool:
    return find_spec("numba") is not None
