"""Old names of options: taken for one more release, with a warning."""

from __future__ import annotations

import warnings
from functools import cache


@cache
def warn_renamed(old: str, new: str) -> None:
    """Tell the user, once, what an option is called now."""
    # FutureWarning: Python hides DeprecationWarning from those who write plans, not code.
    warnings.warn(
        f"{old} is now {new}; the old name goes with the next release", FutureWarning, stacklevel=2
    )
