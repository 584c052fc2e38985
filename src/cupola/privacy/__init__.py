"""Differential privacy: accountant, noise, clipped gradients; and three pieces to use alone.

epsilon(rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5)
noise_multiplier(epsilon=3.0, rate=0.01, steps=1000, delta=1e-5)
model, optimizer, loader = make_private(model, optimizer, loader, epsilon=3.0, epochs=5)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupola.privacy.dp_sgd_budget import epsilon as epsilon
    from cupola.privacy.dp_sgd_budget import noise_multiplier as noise_multiplier
    from cupola.privacy.plain_loop import make_private as make_private

_HOME = {
    "epsilon": "dp_sgd_budget",
    "make_private": "plain_loop",
    "noise_multiplier": "dp_sgd_budget",
}
__all__ = ["epsilon", "make_private", "noise_multiplier"]


def __getattr__(name: str) -> Any:
    """Loaded when it is used: whoever accounts needs no torch."""
    if name in _HOME:
        return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
