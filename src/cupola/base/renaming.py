"""Old names of options: taken for one more release, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_kept = ContextVar("_kept", default=False)


@contextmanager
def reading_kept() -> Iterator[None]:
    """Inside, old names are no matter: a run folder keeps its plan as it was written."""
    token = _kept.set(True)
    try:
        yield
    finally:
        _kept.reset(token)


def warn_renamed(old: str, new: str) -> None:
    """Tell the user, once, what an option is called now."""
    if not _kept.get():
        warn_once(f"{old} is now {new}; the old name goes with the next release")


@cache
def warn_once(message: str) -> None:
    # FutureWarning: Python hides DeprecationWarning from those who write plans, not code.
    warnings.warn(message, FutureWarning, stacklevel=3)
