"""The keys of a study."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from parts.markdown import code, meanings, table


def _keys(model: type[BaseModel], prefix: str = "") -> str:
    rows = []
    for name, field in model.model_fields.items():
        default: Any = field.get_default(call_default_factory=True)
        plain = not isinstance(default, BaseModel) and not field.is_required()
        shown = code(list(default) if isinstance(default, tuple) else default) if plain else ""
        shown = "" if default is None else shown
        common = meanings()["plan"].get(name, "").replace("](#", "](plans.md#")  # of every plan
        rows.append([f"`{prefix}{name}`", shown, field.description or common])
    return table(["key", "default", "meaning"], rows)


def study() -> str:
    from cupola.association.plan import StudyPlan

    return _keys(StudyPlan)


def parts() -> str:
    from cupola.association import Newton, Quality, Score, Trait
    from cupola.association.output_choices import About
    from cupola.association.plan import CohortFiles
    from cupola.association.study_choices import Clump, Limits, Mixed

    sections = [("trait.", Trait), ("quality.", Quality), ("newton.", Newton), ("score.", Score),
                ("mixed.", Mixed), ("limits.", Limits), ("clump.", Clump),
                ("about.", About)]  # fmt: skip
    tables = [_keys(model, prefix) for prefix, model in sections]
    return "\n\n".join([*tables, "In each `[[cohorts]]`:\n\n" + _keys(CohortFiles)])


def genome() -> str:
    from cupola.association.study_choices import WholeGenome

    return _keys(WholeGenome, "whole_genome.")


def site_limits() -> str:
    from cupola.site.settings import TotalLimits

    return _keys(TotalLimits, "limits.")


PARTS = {"study-keys": study, "study-parts": parts, "site-limits": site_limits,
         "genome-keys": genome}  # fmt: skip
