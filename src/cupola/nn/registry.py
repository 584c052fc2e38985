"""Things a plan calls by name: registered functions with checked options, or "module:name".

A registered function takes its options as keyword-only parameters; their annotations say which
values are allowed, and a value that does not fit is refused with the key the user wrote.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from cupola.base.importing import imported
from cupola.base.suggest import suggest
from cupola.errors import PlanError

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Entry:
    """A registered function and one line about it."""

    function: Callable[..., Any]
    about: str


class Registry:
    """Functions by name; `key` is what plans call the choice ("model", "loss")."""

    def __init__(self, key: str) -> None:
        self.key = key
        self._entries: dict[str, Entry] = {}

    def add(self, name: str, about: str) -> Callable[[F], F]:
        """Decorator that registers a function under `name`, with one line about it."""

        def register(function: F) -> F:
            if name in self._entries:
                raise ValueError(f"{self.key} {name!r} is registered twice")
            self._entries[name] = Entry(function, about)
            return function

        return register

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self._entries)

    def describe(self) -> dict[str, str]:
        """One line about each registered name."""
        return {name: self._entries[name].about for name in self.names()}

    def options(self, name: str) -> dict[str, Any]:
        """Options of `name` and their defaults (`inspect.Parameter.empty` if there is none)."""
        return {p.name: p.default for p in self._options(name)}

    def find(self, name: str) -> Callable[..., Any]:
        """The function registered as `name`, or the user's own for "module:name"."""
        if ":" in name:
            return _imported(self.key, name)
        if name not in self._entries:
            raise PlanError(f"{self.key} = {name!r} is not known; {suggest(name, self.names())}")
        return self._entries[name].function

    def check(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options as `name` takes them (values converted), or a `PlanError` naming the key."""
        function = self.find(name)
        known = {p.name: p for p in self._options(name)}
        open_ended = any(
            p.kind is p.VAR_KEYWORD for p in inspect.signature(function).parameters.values()
        )
        for option in given:
            if option not in known and not open_ended:
                raise PlanError(
                    f"{self.key}.{option}: {name!r} has no such option; "
                    + (suggest(option, known) if known else "it takes none")
                )
        if ":" in name:
            return dict(given)
        for option, p in known.items():
            if p.default is p.empty and option not in given:
                raise PlanError(f"{self.key}.{option} is missing: {name!r} needs it")
        return {option: self._value(function, option, value) for option, value in given.items()}

    def _options(self, name: str) -> list[inspect.Parameter]:
        """Keyword-only parameters; for the user's own code all that can be given by name."""
        parameters = inspect.signature(self.find(name)).parameters.values()
        own = ":" in name
        return [
            p
            for p in parameters
            if p.kind is p.KEYWORD_ONLY or (own and p.kind is p.POSITIONAL_OR_KEYWORD)
        ]

    def _value(self, function: Callable[..., Any], option: str, value: Any) -> Any:
        try:
            return _adapter(function, option).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            place = "".join(f"[{part}]" for part in problem["loc"] if isinstance(part, int))
            message = problem["msg"][0].lower() + problem["msg"][1:]
            raise PlanError(f"{self.key}.{option}{place} = {value!r}: {message}") from None


@cache
def _adapter(function: Callable[..., Any], option: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(function, include_extras=True)[option])


def _imported(key: str, path: str) -> Callable[..., Any]:
    """The callable at "module:name"."""
    found = imported(path, f"{key} = {path!r}")
    if not callable(found):
        raise PlanError(f"{key} = {path!r} is not callable")
    try:
        inspect.signature(found)
    except ValueError:
        raise PlanError(
            f"{key} = {path!r} does not say which parameters it takes; wrap it in a function"
        ) from None
    return found
