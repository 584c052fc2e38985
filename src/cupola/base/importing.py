"""Imports by name: what stands at 'module:name'."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from cupola.base.held_objects import find_object, is_object
from cupola.base.suggest import closest
from cupola.errors import CupolaError, PlanError

_refused = ContextVar("_refused", default=False)


@contextmanager
def trusting(trust: bool) -> Iterator[None]:
    """Whether code that a file names may be imported inside. A folder from somebody else can name
    any module in its plan, and looking at a folder should run nothing of it."""
    token = _refused.set(not trust)
    try:
        yield
    finally:
        _refused.reset(token)


def imported(
    path: str,
    said: str | None = None,
    error: type[CupolaError] = PlanError,
    installed: bool = False,
) -> Any:
    """The object at 'module:name'; the name may have dots. 'object:...' is one that was passed in
    Python. said: what the user wrote, for errors of this kind. installed: it is ours, or an entry
    point of an installed package."""
    module, _, name = path.partition(":")
    said = path if said is None else said
    if is_object(path):
        return find_object(path, said, error)
    if _refused.get() and not installed:
        raise error(f"{said} names code to import; if you trust this folder, add --trust")
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
