"""Cupola: federated learning and analysis, and what it costs in communication and privacy."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cupola.analysis.checked import check as check
    from cupola.analysis.plan_file import load as load
    from cupola.analysis.run_folder import Run as Run
    from cupola.analysis.session import iterate as iterate
    from cupola.analysis.session import resume as resume
    from cupola.analysis.session import run as run
    from cupola.analysis.session import run_all as run_all
    from cupola.training.plan import Plan as Plan

__version__ = "0.1.0"

_HOME = {
    "Plan": "cupola.training.plan",
    "Run": "cupola.analysis.run_folder",
    "check": "cupola.analysis.checked",
    "iterate": "cupola.analysis.session",
    "load": "cupola.analysis.plan_file",
    "resume": "cupola.analysis.session",
    "run": "cupola.analysis.session",
    "run_all": "cupola.analysis.session",
}
__all__ = [
    "Plan",
    "Run",
    "__version__",
    "check",
    "iterate",
    "load",
    "resume",
    "run",
    "run_all",
]


def __getattr__(name: str) -> Any:
    """Load what needs torch only when it is used, so that `import cupola` is quick."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'cupola' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
