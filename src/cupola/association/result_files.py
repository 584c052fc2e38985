"""What a finished study leaves in its folder: tables, and the summary in result.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from cupola.association import clumps, exchange_tables, gwas_ssf, tables, variant_list_codec
from cupola.association.accounting import mixed_facts
from cupola.association.agreement import left_out
from cupola.association.fit import MEANINGS, SCORED
from cupola.association.regional_plot import LINKED
from cupola.association.results import Results, inflation
from cupola.association.text import write_table
from cupola.base.files import replacing, write_atomically

if TYPE_CHECKING:
    from cupola.association.plan import StudyPlan
    from cupola.association.study_program import Association
    from cupola.federation.program import State

DROPPED, SSF, METADATA = ".dropped.tsv", ".ssf.tsv", ".ssf.tsv-meta.yaml"
CLUMPED = ".clumped"
#: Endings of the tables that a study may leave, and what they are.
NOTES = {
    DROPPED: "why variants were left out",
    ".assoc": "results, as PLINK prints them",
    ".assoc.linear": "results, as PLINK prints them",
    ".assoc.logistic": "results, as PLINK prints them",
    ".assoc.mixed": "results of the mixed model, in PLINK's columns",
    ".model": "trend test, as PLINK prints it",
    CLUMPED: "hits that belong together, as PLINK prints them",
    LINKED: "r^2 between hits and near variants",
    SSF: "results for the GWAS catalog (GWAS-SSF)",
    METADATA: "metadata of the GWAS-SSF table",
    ".components.tsv": "eigenvalues of the components, and how sure they are",
    ".loadings.tsv": "loadings of the components, to project others on",
    ".parquet": "results, unrounded",
    ".regenie": "results in REGENIE's columns",
    ".sumstats.gz": "results for LDSC's munge_sumstats",
}


def stem(name: str) -> str:
    """What the files of a study of this name begin with."""
    return name.replace(" ", "_")


def tables_of(name: str) -> tuple[str, ...]:
    """All tables that a study of this name may leave."""
    return tuple(stem(name) + ending for ending in NOTES)


def write_tables(
    plan: StudyPlan, folder: Path, program: Association, state: State, found: Results
) -> list[str]:
    """PLINK's table and the reasons, and what else the plan wants; their names."""
    written: list[str] = []

    def write(ending: str, made: Callable[[IO[bytes]], Any]) -> Any:
        written.append(stem(plan.name) + ending)
        with replacing(folder / written[-1]) as file:
            return made(file)

    lines = tables.columns_of(found, plan.test, plan.confidence, plan.newton.firth)
    shown = [c.shown for c in found.covariates]
    write(tables.ENDINGS[plan.test], lambda file: write_table(file, lines, shown))
    listed, reason = program.variants(state), state.arrays["reason"]
    write(DROPPED, lambda file: tables.write_dropped(file, listed, reason, found))
    if plan.trend:
        trend = tables.trend_columns(found)
        write(".model", lambda file: write_table(file, trend))
    if plan.clump is not None:
        made = clumps.clumps(program, state, found)
        write(CLUMPED, lambda file: clumps.write_clumped(file, found, made))
        write(LINKED, lambda file: clumps.write_linkage(file, found, made))
    if "ssf" in plan.tables:
        checksum, lost = write(SSF, lambda file: _ssf(file, plan, found))
        facts = (plan, state.values["people"], written[-1], checksum, lost)
        written.append(stem(plan.name) + METADATA)
        write_atomically(folder / written[-1], gwas_ssf.metadata(*facts))
    if "parquet" in plan.tables:
        write(".parquet", lambda file: exchange_tables.write_parquet(file, found))
    if "regenie" in plan.tables:
        write(".regenie", lambda file: exchange_tables.write_regenie(file, found))
    if "ldsc" in plan.tables:
        write(".sumstats.gz", lambda file: exchange_tables.write_ldsc(file, found))
    return written


def write_reasons(folder: Path, name: str, program: Association, state: State) -> str:
    """Why variants were left out, of a study without a test; the table's name."""
    with replacing(folder / (name + DROPPED)) as file:
        tables.write_reasons(file, program.variants(state), state.arrays["reason"])
    return name + DROPPED


def _ssf(file: IO[bytes], plan: StudyPlan, found: Results) -> tuple[str, int]:
    lost = gwas_ssf.write_table_of(file, found, plan.test, plan.confidence)
    return gwas_ssf.checksum_of(file), lost


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
            if s not in SCORED and (found.status == s).any()
        },
        "limits": plan.limits_told,
        "whole_genome": state.values.get("genome_facts"),
        "agreement": state.values["own"] | state.values["found"],
        "warnings": state.values["warnings"],
        "people_quality": state.values.get("people_quality") or {},
        "inflation": inflation(found),
        "hits": {"5e-8": int((p < 5e-8).sum()), "bonferroni": int((p < bonferroni).sum())},
        "bonferroni": bonferroni,
        **({"mixed": mixed_facts(plan, state)} if plan.test == "mixed" else {}),
        "smallest_log10_p": float(np.nanmin(found.log10_p)) if tested.any() else None,
    }
