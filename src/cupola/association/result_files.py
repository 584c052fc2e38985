"""What a finished study leaves in its folder: tables, and the summary in result.json."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association import tables, variant_list_codec
from cupola.association.agreement import left_out
from cupola.association.fit import MEANINGS
from cupola.association.results import Results, inflation
from cupola.base.files import replacing

if TYPE_CHECKING:
    from cupola.association.plan import StudyPlan
    from cupola.association.study_program import Association
    from cupola.federation.program import State

#: All tables that a study may leave.
TABLES = (
    "study.dropped.tsv", "study.assoc", "study.assoc.linear", "study.assoc.logistic",
    "study.model", "study.ssf.tsv", "study.parquet",
)  # fmt: skip


def write_tables(
    plan: StudyPlan, folder: Path, program: Association, state: State, found: Results
) -> list[str]:
    """PLINK's table and the reasons, and what else the plan wants; their names."""
    written = [f"study{tables.ENDINGS[plan.test]}", "study.dropped.tsv"]
    lines = tables.columns_of(found, plan.test, plan.confidence)
    shown = [c.shown for c in found.covariates]
    with replacing(folder / written[0]) as file:
        tables.write_table(file, lines, shown)
    listed, reason = program.variants(state), state.arrays["reason"]
    with replacing(folder / written[1]) as file:
        tables.write_dropped(file, listed, reason, found)
    if plan.trend:
        written.append("study.model")
        trend = tables.trend_columns(found)
        with replacing(folder / "study.model") as file:
            tables.write_table(file, trend)
    if plan.ssf:
        written.append("study.ssf.tsv")
        with replacing(folder / "study.ssf.tsv") as file:
            tables.write_ssf(file, found, plan.test)
    if plan.parquet:
        written.append("study.parquet")
        with replacing(folder / "study.parquet") as file:
            tables.write_parquet(file, found)
    return written


def summary(plan: StudyPlan, program: Association, state: State, found: Results) -> dict[str, Any]:
    reason, p = state.arrays["reason"], found.columns["P"]
    tested = np.isfinite(p)
    bonferroni = 0.05 / max(1, int(tested.sum()))
    return {
        "people": state.values["people"],
        "binary": state.values["binary"],
        "variants": len(reason),
        "list_hash": variant_list_codec.fingerprint(program.variants(state)),
        "tested": int(tested.sum()),
        "left_out": left_out(reason),
        "without_result": {
            MEANINGS[s]: int((found.status == s).sum())
            for s in range(1, len(MEANINGS))
            if (found.status == s).any()
        },
        "limits": plan.limits.model_dump(),
        "whole_genome": state.values.get("genome_facts"),
        "agreement": state.values["own"] | state.values["found"],
        "warnings": state.values["warnings"],
        "inflation": inflation(found),
        "hits": {"5e-8": int((p < 5e-8).sum()), "bonferroni": int((p < bonferroni).sum())},
        "bonferroni": bonferroni,
        "smallest_log10_p": float(np.nanmin(found.log10_p)) if tested.any() else None,
    }
