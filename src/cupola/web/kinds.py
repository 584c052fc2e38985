"""Kinds of studies: the forms that analyses offer, and the user's own 'module:Class'."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from cupola.analysis import kinds
from cupola.errors import CupolaError, PlanError

if TYPE_CHECKING:
    from cupola.analysis.forms import Form
    from cupola.analysis.protocol import Analysis

Problem = tuple[str, str]  # dotted key ('' for the whole), what is wrong


class Wrong(CupolaError):
    """A plan cannot be carried out. problems: by key."""

    def __init__(self, found: Sequence[Problem]) -> None:
        self.problems = list(found)
        super().__init__("; ".join(f"{key}: {said}" if key else said for key, said in found))


@cache
def _offered() -> dict[str, tuple[str, Form]]:
    """Kind of the analysis and form, by the form's name."""
    return {
        name: (kind, form)
        for kind in kinds.ours()
        for name, form in kinds.find_kind(kind).forms().items()
    }


def forms() -> dict[str, Form]:
    return {name: form for name, (_, form) in _offered().items()}


def registered(kind: str) -> str:
    """What plans call the analysis of a study of this kind."""
    return _offered()[kind][0] if kind in _offered() else kind


def analysis_named(kind: str, modules: Collection[str] = ()) -> type[Analysis[Any]]:
    """The analysis of a kind of study. modules: those whose code a plan may name here; of any
    other, nothing is imported."""
    named = registered(kind)
    module = kinds.foreign_module(named)
    if module is not None and module not in modules:
        said = f"'{kind[:100]}' names code: if it is installed on this server and can be trusted, "
        raise Wrong([("kind", f"{said}start it with --module {module[:100]}")])
    try:
        return kinds.find_kind(named)
    except PlanError as error:
        raise Wrong([("kind", str(error))]) from None


def kind_of(given: Mapping[str, Any]) -> str:
    """Which kind of study a plan describes: by its own word, or by a key that only one form has."""
    named = given.get("kind")
    if named is not None and str(named) not in kinds.ours():
        return str(named)
    fitting = [n for n, (kind, _) in _offered().items() if named in (None, kind)]
    marked = [name for name in fitting if forms()[name].mark in given]
    return (marked or [name for name in fitting if not forms()[name].mark] or fitting)[0]
