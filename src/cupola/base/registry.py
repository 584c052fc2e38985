"""Things called by name: a registry with suggestions, checked options, and users' "module:name".

    models = Registry("model")

    @models.add("mlp", "multilayer perceptron")
    def mlp(input_shape, classes, *, hidden: list[int] = [200]): ...

    models.find("mpl")                      # PlanError: did you mean 'mlp'?
    models.check("mlp", {"hidden": "x"})    # PlanError: model.hidden = 'x': ...

A registered function takes its options as keyword-only parameters; their annotations say which
values are allowed, and a value that does not fit is refused with the key the user wrote.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from cupola.base.importing import imported
from cupola.base.suggest import suggest
from cupola.errors import CupolaError, PlanError

T = TypeVar("T")
A = TypeVar("A")
Parameters = dict[str, inspect.Parameter]


@dataclass(frozen=True)
class Entry(Generic[T]):
    """A registered thing and one line about it."""

    thing: T
    about: str


class Registry(Generic[T]):
    """Things by name.

    key: what plans call the choice ("model", "loss"); it begins every message. what: a word for
        things that no plan key stands for ("data set").
    error: kind of the refusals. kind: type of the things; users' own must be of it, too. Without
        it things are functions (or classes) that are called with options.
    own: whether "module:name" stands for a user's own; otherwise nothing is ever imported.
    fill: called before the first look-up; imports the modules that register themselves.
    replace: whether a name may be registered again, as in a notebook.
    """

    def __init__(
        self,
        key: str = "",
        *,
        what: str = "",
        error: type[CupolaError] = PlanError,
        kind: type[T] | None = None,
        own: bool = True,
        fill: Callable[[], object] | None = None,
        replace: bool = False,
    ) -> None:
        self.key, self.what, self.error, self.kind = key, what or key, error, kind
        self.own, self._fill, self._replace = own, fill, replace
        self._entries: dict[str, Entry[T]] = {}

    # Names

    def add(self, name: str, about: str = "") -> Callable[[A], A]:
        """Decorator that registers a thing under `name`, with one line about it."""

        def register(thing: A) -> A:
            if name in self._entries and not self._replace:
                raise ValueError(f"{self.what} {name!r} is registered twice")
            self._entries[name] = Entry(thing, about)  # type: ignore[arg-type]
            return thing

        return register

    @property
    def entries(self) -> dict[str, Entry[T]]:
        """All that is registered, in the order in which it was."""
        if self._fill is not None:
            fill, self._fill = self._fill, None  # it may ask for names itself
            fill()
        return self._entries

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def names(self) -> list[str]:
        """All registered names, sorted."""
        return sorted(self.entries)

    def describe(self) -> dict[str, str]:
        """One line about each registered name."""
        return {name: self.entries[name].about for name in self.names()}

    def find(self, name: str) -> T:
        """What is registered as `name`, or the user's own for "module:name"."""
        if name in self.entries:
            return self.entries[name].thing
        if self.own and ":" in name:
            return self._own(name)
        meant = suggest(name, self.names())
        if not self.key:
            raise self.error(f"there is no {self.what} {name!r}; {meant}")
        raise self.error(f"{self.key} = {name!r} is not known; {meant}")

    def _own(self, path: str) -> Any:
        """The thing at "module:name"."""
        said = f"{self.key} = {path!r}" if self.key else path
        found = imported(path, said, self.error)
        if self.kind is not None:
            if not isinstance(found, self.kind):
                given, wanted = type(found).__name__, self.kind.__name__
                raise self.error(f"{said} is a {given}, not a cupola {wanted}")
            return found
        if not callable(found):
            raise self.error(f"{said} is not callable")
        try:
            inspect.signature(found)
        except ValueError:
            raise self.error(
                f"{said} does not say which parameters it takes; wrap it in a function"
            ) from None
        return found

    # Options

    def options(self, name: str) -> dict[str, Any]:
        """Options of `name` and their defaults (`inspect.Parameter.empty` if there is none)."""
        return {option: p.default for option, p in self.parameters(name).items()}

    def parameters(self, name: str) -> Parameters:
        """What can be given as options: keyword-only parameters; of the user's own code all that
        can be given by name."""
        function: Any = self.find(name)
        own, taken = name not in self.entries, inspect.signature(function).parameters
        return {
            option: p
            for option, p in taken.items()
            if p.kind is p.KEYWORD_ONLY or (own and p.kind is p.POSITIONAL_OR_KEYWORD)
        }

    def hints(self, function: T) -> Mapping[str, Any]:
        """Types of a registered function's options."""
        return get_type_hints(function, include_extras=True)

    def check(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options as `name` takes them (values converted), or an error that names the key."""
        function: Any = self.find(name)
        known, own = self.parameters(name), name not in self.entries
        every = inspect.signature(function).parameters.values()
        if not any(p.kind is p.VAR_KEYWORD for p in every):
            for option in given:
                if option not in known:
                    meant = suggest(option, known) if known else "it takes none"
                    said = f"{self.key}.{option}: " if self.key else ""
                    raise self.error(f"{said}{name!r} has no option {option!r}; {meant}")
        if not own:
            self.require(name, known, given)
            hints = self.hints(function)
            return {o: self._value(name, o, value, hints.get(o, Any)) for o, value in given.items()}
        return dict(given)

    def require(self, name: str, known: Parameters, given: Mapping[str, Any]) -> None:
        """Refuse a call that leaves an option open which has no default."""
        for option, p in known.items():
            if p.default is p.empty and option not in given:
                said = f"{self.key}.{option} is missing: " if self.key else ""
                raise self.error(f"{said}{name!r} needs the option {option!r}")

    def _value(self, name: str, option: str, value: Any, wanted: Any) -> Any:
        try:
            return TypeAdapter(wanted).validate_python(value)
        except ValidationError as error:
            problem = error.errors()[0]
            place = "".join(f"[{part}]" for part in problem["loc"] if isinstance(part, int))
            message = problem["msg"][0].lower() + problem["msg"][1:]
            said = f"{self.key}." if self.key else f"{name}: "
            raise self.error(f"{said}{option}{place} = {value!r}: {message}") from None
