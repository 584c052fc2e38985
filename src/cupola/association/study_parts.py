"""The parts that a study may have after its counts, by phase, and what cohorts are asked in all."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from cupola.association.part import Part
from cupola.association.site import FINGERPRINTS
from cupola.association.study_choices import Study
from cupola.association.tasks import GROUPS, PROPOSE

#: Where the part of a phase is; `Study.parts` says which a study has, and in which order. A new
#: part is a line here. It is imported when it is needed.
PARTS = {
    "whole-genome": "structure.whole_genome:WholeGenomeRegression",
    "components": "structure.components:ComponentsPart",
    "score": "score_test:ScoreTest",
    "saddle": "saddle_point:SaddlePoint",
    "test": "regression:Regression",
    "mixed": "structure.mixed_model:MixedModel",
    "mixed test": "structure.mixed_test:MixedTest",
    "quality report": "quality_report:QualityReport",
    "heterogeneity": "heterogeneity:Heterogeneity",
    "clump": "clumping:Clumping",
}


@cache
def part_of(phase: str) -> type[Part]:
    module, _, name = PARTS[phase].partition(":")
    found: type[Part] = getattr(import_module(f"cupola.association.{module}"), name)
    return found


def parts_of(study: Study) -> list[type[Part]]:
    return [part_of(phase) for phase in study.parts if phase in PARTS]


def tasks_of(study: Study, listed: bool) -> tuple[str, ...]:
    """All that cohorts are asked in a study. listed: whether it has a public list of variants."""
    names = ["gwas people", "gwas agree", "gwas counts"]
    names += ["gwas moments"] if study.regression else []
    names += [GROUPS] if study.least_cohorts is not None else []
    names += [task for part in parts_of(study) for task in part.tasks(study)]
    names += [] if listed else [PROPOSE]
    names += [FINGERPRINTS] if study.fingerprints else []
    return tuple(dict.fromkeys(names))
