"""Imports by name: what stands at 'module:name'."""

from __future__ import annotations

import importlib
from typing import Any

from cupola.base.suggest import closest
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
            meant = closest(part, [n for n in vars(found) if not n.startswith("_")])
            hint = f"; did you mean {meant!r}?" if meant else ""
            raise error(f"{said}: module {module} has no {name}{hint}")
        found = getattr(found, part)
    return found
