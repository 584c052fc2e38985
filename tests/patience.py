"""Waiting for what other processes do; a busy machine is no fault."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def wait(until: Callable[[], Any], seconds: float = 600.0, every: float = 0.2) -> Any:
    """What `until` gives once it gives something."""
    end = time.monotonic() + seconds
    while not (found := until()):
        assert time.monotonic() < end, "it took too long"
        time.sleep(every)
    return found
