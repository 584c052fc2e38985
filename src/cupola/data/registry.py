"""Data sets by name: `@dataset("name")` registers a loader, `load("name", ...)` calls it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from cupola.base.importing import imported
from cupola.base.suggest import suggest
from cupola.data.dataset import Source
from cupola.data.download import Files
from cupola.data.owners import Owners
from cupola.errors import DataError

Loader = Callable[..., Source | Owners]
L = TypeVar("L", bound=Loader)

_LOADERS: dict[str, Loader] = {}


def dataset(name: str) -> Callable[[L], L]:
    """Register a loader. Its keyword parameters are the options; a first parameter `files`
    is filled with a `Files` and gives it the options folder, download and progress."""

    def register(loader: L) -> L:
        _LOADERS[name] = loader
        return loader

    return register


def names() -> list[str]:
    """Every registered data set."""
    return sorted(_LOADERS)


def options(name: str) -> dict[str, Any]:
    """Options of a loader with their defaults (`inspect.Parameter.empty` if there is none)."""
    return {p.name: p.default for p in _parameters(_loader(name))}


def describe(name: str) -> str:
    """What a data set is: the loader's docstring."""
    return inspect.getdoc(_loader(name)) or ""


def load(name: str, **given: Any) -> Source | Owners:
    """Load a data set by name, or the user's own by "module:function".

    Nothing is downloaded unless `download=True`.
    """
    loader = _loader(name)
    parameters = _parameters(loader)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in given:
            if option not in [p.name for p in parameters]:
                known = [p.name for p in parameters]
                raise DataError(f"{name} has no option {option!r}; {suggest(option, known)}")
    for p in parameters:
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in given:
            raise DataError(f"{name} needs the option {p.name!r}")
    if name in _LOADERS:
        given = {option: _checked(name, loader, option, value) for option, value in given.items()}
    if "files" in inspect.signature(loader).parameters:
        folder = given.pop("folder", None)
        given["files"] = Files(
            name.replace(":", "."),
            None if folder is None else Path(folder).expanduser(),
            given.pop("download", False),
            given.pop("progress", None),
        )
    source = loader(**given)
    if not isinstance(source, Source | Owners):
        raise DataError(f"{name} gave a {type(source).__name__}, not a cupola.data.Source")
    return source


def _parameters(loader: Loader) -> list[inspect.Parameter]:
    """Options a user may give."""
    parameters = list(inspect.signature(loader).parameters.values())
    if not any(p.name == "files" for p in parameters):
        return parameters
    common = {"folder": None, "download": False, "progress": None}
    return [p for p in parameters if p.name != "files"] + [
        inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=value)
        for key, value in common.items()
    ]


def _checked(name: str, loader: Loader, option: str, value: Any) -> Any:
    """The value, if it is of the type the loader says."""
    common = {"folder": str | Path | None, "download": bool}
    wanted: Any = (common | get_type_hints(loader, include_extras=True)).get(option, Any)
    try:
        return TypeAdapter(wanted).validate_python(value)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise DataError(f"{name}: {option} = {value!r}: {reason}") from None


def _loader(name: str) -> Loader:
    if name in _LOADERS:
        return _LOADERS[name]
    if ":" not in name:
        raise DataError(f"there is no data set {name!r}; {suggest(name, names())}")
    loader = imported(name, error=DataError)
    if not callable(loader):
        raise DataError(f"{name} is not a function")
    return loader
