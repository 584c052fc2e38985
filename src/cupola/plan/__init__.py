"""Plans in, run folders out.

>>> plan = load("experiments/plan.toml", ["local.lr=0.2"])
>>> cupola.run(plan).result["final"]["test"]["accuracy"]
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupola.plan.compose import federated_data as federated_data
    from cupola.plan.compose import federation as federation
    from cupola.plan.compose import host as host
    from cupola.plan.compose import problem as problem
    from cupola.plan.compose import training as training
    from cupola.plan.folder import Run as Run
    from cupola.plan.load import load as load
    from cupola.plan.plan import Data as Data
    from cupola.plan.plan import Engine as Engine
    from cupola.plan.plan import Loss as Loss
    from cupola.plan.plan import Model as Model
    from cupola.plan.plan import Plan as Plan

_HOME = {
    **dict.fromkeys(("federated_data", "federation", "host", "problem", "training"), "compose"),
    **dict.fromkeys(("Data", "Engine", "Loss", "Model", "Plan"), "plan"),
    "Run": "folder",
    "load": "load",
}
__all__ = [
    "Data",
    "Engine",
    "Loss",
    "Model",
    "Plan",
    "Run",
    "federated_data",
    "federation",
    "host",
    "load",
    "problem",
    "training",
]


def __getattr__(name: str) -> Any:
    """Load what needs torch only when it is used: association studies do not."""
    if name in _HOME:
        return getattr(importlib.import_module(f"cupola.plan.{_HOME[name]}"), name)
    raise AttributeError(f"module 'cupola.plan' has no attribute {name!r}")


class _Package(ModuleType):
    """`cupola.plan.load` is the function, although a module has that name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
