"""Data sets by name: `@dataset("name")` registers a loader, `load("name", ...)` calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cupola.base.registry import Parameters, Registry
from cupola.data.dataset import Source
from cupola.data.download import Files
from cupola.data.lazy import Owners
from cupola.errors import DataError

Loader = Callable[..., Source | Owners]
L = TypeVar("L", bound=Loader)

_FROM_FILES = {
    key: inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default)
    for key, default in (("folder", None), ("download", False), ("progress", None))
}


class _Loaders(Registry[Loader]):
    """All parameters of a loader are options; `files` stands for folder, download, progress."""

    def parameters(self, name: str) -> Parameters:
        taken = inspect.signature(self.find(name)).parameters
        found = {n: p for n, p in taken.items() if n != "files" and p.kind is not p.VAR_KEYWORD}
        return found | _FROM_FILES if "files" in taken else found

    def hints(self, function: Loader) -> Mapping[str, Any]:
        return {"folder": str | Path | None, "download": bool, **super().hints(function)}


_LOADERS = _Loaders(what="data set", error=DataError, replace=True)
names = _LOADERS.names
options = _LOADERS.options


def dataset(name: str) -> Callable[[L], L]:
    """Register a loader. Its keyword parameters are the options; a first parameter `files`
    is filled with a `Files` and gives it the options folder, download and progress."""
    return _LOADERS.add(name)


def describe(name: str) -> str:
    """What a data set is: the loader's docstring."""
    return inspect.getdoc(_LOADERS.find(name)) or ""


def load(name: str, **given: Any) -> Source | Owners:
    """Load a data set by name, or the user's own by "module:function".

    Nothing is downloaded unless `download=True`.
    """
    source = made(name, given)
    if not isinstance(source, Source | Owners):
        raise DataError(f"{name} gave a {type(source).__name__}, not a cupola.data.Source")
    return source


def check(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options as a loader takes them, none of them missing; reads no data."""
    taken = _LOADERS.check(name, given)
    _LOADERS.require(name, _LOADERS.parameters(name), taken)
    return taken


def made(name: str, options: Mapping[str, Any]) -> Any:
    """What a loader gives: of a user's own it may be anything."""
    loader, given = _LOADERS.find(name), check(name, options)
    if "files" in inspect.signature(loader).parameters:
        folder = given.pop("folder", None)
        given["files"] = Files(
            name.replace(":", "."),
            None if folder is None else Path(folder).expanduser(),
            given.pop("download", False),
            given.pop("progress", None),
        )
    return loader(**given)
