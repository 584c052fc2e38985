"""A study of components alone: a plan of the kind 'pca'."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ValidationError, ValidationInfo, model_validator

from cupola.association.component_choices import Components
from cupola.association.plan import StudyPlan

#: Keys of association studies that are about a test.
OF_TESTS = (
    "trait", "covariates", "sex", "trend", "covariate_rows", "newton", "score", "mixed", "clump",
    "tables", "dosages", "about", "one_sided",
)  # fmt: skip


class ComponentsPlan(StudyPlan):
    """All of a study of components: as an association study, without trait and test."""

    kind: Literal["pca"] = "pca"  # type: ignore[assignment]
    """Of the analysis."""
    test: None = None  # type: ignore[assignment]
    """There is none."""
    components: Components = Components()
    """Which, and how they are found."""

    @model_validator(mode="before")
    @classmethod
    def _without_test(cls, given: Any, info: ValidationInfo) -> Any:
        del info
        if not isinstance(given, dict):
            return given
        for key in OF_TESTS:
            default = StudyPlan.model_fields[key].get_default(call_default_factory=True)
            if key in given and not _same(given[key], default):
                raise ValueError(
                    f"{key}: components have no trait and no test; leave it out, or say kind = "
                    "'association' with [components]"
                )
        return given


def _same(given: Any, default: Any) -> bool:
    """Whether a key says no more than without it, as a plan that was written out does."""
    if given is None or given == default:
        return True
    if isinstance(default, BaseModel) and isinstance(given, dict):
        try:
            return bool(type(default).model_validate(given) == default)
        except ValidationError:
            return False
    return isinstance(default, tuple) and given == list(default)
