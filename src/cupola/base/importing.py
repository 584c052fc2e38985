"""Imports by name: what stands at 'module:name'."""

from __future__ import annotations

import importlib
from typing import Any

from cupola.base.suggest import suggest
from cupola.errors import CupolaError, PlanError


def imported(path: str, said: str | None = None, error: type[CupolaError] = PlanError) -> Any:
    """The object at 'module:name'; the name may have dots. said: what the user wrote, for errors
    of this kind."""
    module, _, name = path.partition(":")
    said = path if said is None else said
    try:
        found: Any = importlib.import_module(module)
    except ImportError as reason:
        raise error(
            f"{said}: cannot import {module!r} ({reason}); "
            "modules are looked for in the current folder and where Python finds them"
        ) from reason
    for part in name.split("."):
        if not hasattr(found, part):
            public = [n for n in vars(found) if not n.startswith("_")]
            raise error(f"{said}: {module!r} has no {name!r}; {suggest(part, public)}")
        found = getattr(found, part)
    return found
