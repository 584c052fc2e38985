"""What cohorts agree to when they join a study, hashed as in the first edition: studies under way
stay joined when a key is added.

A key that came later counts where a study sets it. So its default never changes: two versions would
call two studies by one hash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

#: Keys of the first edition, which count even where they have their default.
FIRST: Mapping[str, frozenset[str]] = {
    "": frozenset({
        "test", "trait", "covariates", "sex", "sex_on_x", "ambiguous_sex", "trend",
        "covariate_rows", "quality", "newton", "vif", "people_per_column", "limits", "one_sided",
        "largest", "rare", "chunk", "fingerprints", "kind", "name", "seed", "sum", "variants",
        "variants_hash", "confidence",
    }),
    "trait": frozenset({"column", "kind"}),
    "quality": frozenset({"maf", "missing", "hardy_weinberg", "person_missing", "unknown_strand"}),
    "newton": frozenset({"iterations", "tolerance", "firth"}),
    "limits": frozenset({"effective", "least_cell", "grid", "outliers"}),
}  # fmt: skip


def agreed(plan: BaseModel, own: set[str]) -> dict[str, Any]:
    """A plan's facts but for those that are each cohort's own affair."""
    return _kept(plan, plan.model_dump(mode="json", exclude=own), "")


def _kept(model: BaseModel, facts: dict[str, Any], place: str) -> dict[str, Any]:
    found = {}
    for key, value in facts.items():
        given = getattr(model, key)
        if key not in FIRST[place] and given == type(model).model_fields[key].get_default(
            call_default_factory=True
        ):
            continue
        inner = f"{place}.{key}" if place else key
        nested = isinstance(given, BaseModel) and inner in FIRST
        found[key] = _kept(given, value, inner) if nested else value
    return found
