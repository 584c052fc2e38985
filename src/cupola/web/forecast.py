"""What an association study will send, before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cupola.gwas import Association, read_variants
from cupola.gwas.files import Variants, read_people
from cupola.gwas.outline import outline
from cupola.plan.cost import question_bytes
from cupola.plan.parties import learned_of_study
from cupola.plan.study import CohortFiles, StudyPlan

VARIANTS, PEOPLE = 100_000, 3000  # of a study of which no cohort is known yet
ITERATIONS = 6  # of Newton's method, as they usually are


def forecast(plan: StudyPlan, cohorts: list[CohortFiles], base: Path) -> dict[str, Any]:
    """Bytes by question. cohorts: those whose files are known, relative to base; the first one's
    variants stand for all."""
    sites = len(plan.cohorts)
    if cohorts:
        files = [cohort.files(base) for cohort in cohorts]
        variants = read_variants(files[0].bim)
        people = sum(len(read_people(one.fam).person) for one in files)
    else:
        variants, people = _typical(), PEOPLE
    rows: list[dict[str, Any]] = []
    study = Association(plan.study(), sites)
    chunks = -(-len(variants) // plan.chunk)
    for kind, question, times in outline(study, variants, people, plan.variants is not None):
        down, up, third = question_bytes(question, kind, sites, plan.sum)
        asked = 1 if question.task == "gwas propose" else sites  # the first cohort alone proposes
        often = ITERATIONS * (1 if question.task == "gwas shared" else chunks)
        often = often if times is None else times
        every = often * (asked * (down + up) + third)
        rows.append({"task": question.task, "times": often, "sure": times is not None,
                     "down": down, "up": up, "total": every})  # fmt: skip
    return {
        "rows": rows, "total": sum(row["total"] for row in rows), "sites": sites,
        "variants": len(variants), "people": people, "known": len(cohorts),
        "iterations": ITERATIONS,
        "parties": [{"party": p, "learns": w} for p, w in learned_of_study(plan.sum)],
    }  # fmt: skip


def _typical() -> Variants:
    """A list as chips have it: names of ten letters, two alleles."""
    place = np.arange(VARIANTS)
    names = np.array([f"rs{7_000_000 + 13 * i}" for i in range(VARIANTS)])
    a1, a2 = np.full(VARIANTS, "A"), np.full(VARIANTS, "G")
    return Variants(1 + place * 22 // VARIANTS, 1000 + 700 * place, names, a1, a2)
