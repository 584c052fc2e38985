"""Kinds of analysis by name: ours, installed ones (entry points), and the user's 'module:Class'."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from cupola.base.importing import imported
from cupola.base.suggest import hint
from cupola.errors import PlanError

if TYPE_CHECKING:
    from cupola.analysis.protocol import Analysis

#: Packages offer kinds under this group: `name = "package.module:Class"`.
GROUP = "cupola.analyses"
_OURS = {
    "training": "cupola.training.analysis:TrainingAnalysis",
    "association": "cupola.association.analysis:AssociationAnalysis",
    "pca": "cupola.association.component_study:ComponentsAnalysis",
}


def kind_of(given: Mapping[str, Any]) -> str:
    """The kind that a plan names. Plans of the first edition named none: those with cohorts were
    association studies, all others trained."""
    named = given.get("kind")
    if named is not None:
        return str(named)
    return "association" if "cohorts" in given else "training"


def ours() -> tuple[str, ...]:
    """Kinds that come with Cupola."""
    return tuple(_OURS)


def names() -> list[str]:
    """Every kind that a plan can name here, but for the user's own."""
    return [*_OURS, *(point.name for point in entry_points(group=GROUP))]


def place_of(kind: str) -> str:
    """Where a kind is, 'module:Class', without importing it; its own name if it is unknown."""
    installed = (point.value for point in entry_points(group=GROUP) if point.name == kind)
    return _OURS.get(kind) or next(installed, kind)


def foreign_module(kind: str) -> str | None:
    """The module that a kind would import, if it is not one of ours."""
    if kind in _OURS or ":" not in place_of(kind):
        return None
    return place_of(kind).partition(":")[0]


@cache
def find_kind(kind: str) -> type[Analysis[Any]]:
    """The analysis of this name."""
    from cupola.analysis.protocol import Analysis

    place = place_of(kind)
    if ":" not in place:
        raise PlanError(f"kind = '{kind}' is unknown; {hint(kind, names(), 'there are')}")
    found = imported(place, f"kind = '{kind}'", installed=place != kind)
    if not (isinstance(found, type) and issubclass(found, Analysis)):
        raise PlanError(f"kind = '{kind}' is no cupola.analysis.Analysis")
    return found


def analysis_of(plan: Any) -> Analysis[Any]:
    """The analysis that carries out a plan."""
    return find_kind(plan.kind)(plan)
