"""What an association study will send, for the web: rehearsed where all cohorts are here, estimated
from the sizes of its questions where some have yet to join."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cupola.analysis.check import rows_of
from cupola.analysis.preview import simulated_roster
from cupola.analysis.simulated import simulated_keys
from cupola.association.analysis import AssociationAnalysis
from cupola.association.files import Variants, read_people, read_variants
from cupola.association.forecast import USUAL, check
from cupola.association.own_cohort import study_answers
from cupola.association.preview import outline
from cupola.association.study_program import Association
from cupola.association.tasks import PROPOSE
from cupola.association.texts import Texts
from cupola.base.formatting import count, number, size, text, times
from cupola.federation.message import Question, blank, contribution_size, question_size
from cupola.pages import page
from cupola.pages.plan_facts import party_table
from cupola.secure.simulation import expected_traffic

VARIANTS, PEOPLE = 100_000, 3000  # of a study of which no cohort is known yet


def foresee(analysis: AssociationAnalysis, folder: Path) -> dict[str, Any]:
    """Bytes by question. Of cohorts whose files are not known, the first known one's variants
    stand for all."""
    plan = analysis.plan
    sites = len(plan.cohorts)
    files = [cohort.files(folder) for cohort in plan.cohorts if cohort.known]
    variants, people = _typical(), PEOPLE
    if files:
        variants = read_variants(files[0].bim)
        people = sum(len(read_people(one.fam).person) for one in files)
    asked = list(outline(Association(plan.study(), sites), variants, people, bool(plan.variants)))
    found: dict[str, Any] = {
        "sites": sites,
        "known": len(files),
        "answers": study_answers(plan, variants, people, simulated_roster(analysis, sites)),
    }
    if len(files) == sites:
        facts = check(plan.model_copy(update={"folder": str(folder)}))
        rows = [_rehearsed(row, sites, facts["bytes"]["at_most"]) for row in facts["bytes"]["rows"]]
        more = {"at_most": facts["bytes"]["at_most"], "iterations": plan.newton.iterations}
        return {**facts, **found, **more, "rows": rows, "total": facts["bytes"]["total"]}
    chunks = -(-len(variants) // plan.chunk)
    rows = [_estimated(analysis, *one, sites, chunks) for one in asked]
    return {
        **found, "rows": rows, "total": sum(row["total"] for row in rows),
        "variants": len(variants), "people": people, "iterations": USUAL,
        "parties": rows_of(analysis.parties()),
    }  # fmt: skip


def _rehearsed(row: Mapping[str, Any], sites: int, at_most: list[str]) -> dict[str, Any]:
    """With the bytes of an average question to and from each site."""
    alone = row["task"] in (PROPOSE, "unmask")  # one cohort after another, a third party
    answers = row["questions"] * (1 if alone else sites)
    return {"task": row["task"], "times": row["questions"], "sure": not at_most,
            "down": row["down"] // answers, "up": row["up"] // answers,
            "total": row["down"] + row["up"]}  # fmt: skip


def _estimated(
    analysis: AssociationAnalysis,
    kind: str,
    question: Question,
    often: int | None,
    sites: int,
    chunks: int,
) -> dict[str, Any]:
    down, up, third = _sizes(analysis, kind, question, sites)
    asked = 1 if question.task == PROPOSE else sites  # one list, whoever names its variants
    if analysis.plan.study().scored:  # twice as many variants as by chance go on
        chunks = max(1, round(analysis.plan.score.gone_on * chunks))
    usual = USUAL * (1 if question.task == "gwas shared" else chunks)
    times_asked = usual if often is None else often
    return {"task": question.task, "times": times_asked, "sure": often is not None, "down": down,
            "up": up, "total": times_asked * (asked * (down + up) + third)}  # fmt: skip


def _sizes(
    analysis: AssociationAnalysis, kind: str, question: Question, sites: int
) -> tuple[int, int, int]:
    """Bytes to each cohort, from each, and to and from a third party."""
    answer = contribution_size({name: blank(spec) for name, spec in question.expects.items()})
    if kind == "gather" or not analysis.plan.sum.masked:
        return question_size(question), answer, 0
    sent = dict.fromkeys(range(sites), frozenset(question.expects))
    told = expected_traffic(question, simulated_keys(analysis, sites), range(sites), sent)
    return told.down, told.up[0], told.beside_down + told.beside_up


def _typical() -> Variants:
    """A list as chips have it: names of ten letters, two alleles."""
    place = np.arange(VARIANTS)
    names = Texts.of([f"rs{7_000_000 + 13 * i}" for i in range(VARIANTS)])
    a1, a2 = Texts.of(["A"] * VARIANTS), Texts.of(["G"] * VARIANTS)
    return Variants(1 + place * 22 // VARIANTS, 1000 + 700 * place, names, a1, a2)


def sections(facts: Mapping[str, Any]) -> list[str]:
    """The same as HTML, part by part."""
    at_most = facts.get("at_most")
    how = ", about" if at_most is None else ", at most" if at_most else ""
    listed = f"{count(facts['sites'], 'site')}, {number(facts['variants'])} variants"
    listed += "" if facts["known"] else " assumed"
    each = size(facts["total"] / facts["variants"])
    unsure = "about " if at_most is None else "up to "
    rows = [
        (
            text(row["task"]),
            ("" if row["sure"] or row["times"] == 1 else unsure) + times(row["times"]),
            *(size(row[key]) for key in ("down", "up", "total")),
        )
        for row in facts["rows"]
    ]
    head = [("question", False), ("asked", True), ("to each site", True),
            ("from each site", True), ("in all", True)]  # fmt: skip
    return [
        page.numbers(
            [
                (f"Sent in all{how}", size(facts["total"]), listed),
                ("For each variant", each, "to and from all sites"),
            ]
        ),
        page.table(head, rows, stacked=True),
        f'<p class="note">{text(_note(facts))}</p>',
        party_table(facts["parties"]),
    ]


def _note(facts: Mapping[str, Any]) -> str:
    if facts.get("at_most") is not None:
        reasons = "".join(f" At most: {reason}." for reason in facts["at_most"])
        return (
            "Rehearsed with the cohorts' own lists and people; no total over genotypes was made."
            + reasons
        )
    known = (
        "With the variants of the first site that joined."
        if facts["known"]
        else f"No site's data are known yet: for a list of {number(facts['variants'])} variants."
    )
    return (
        f"{known} Sizes are the largest: variants that are left out, or whose iterations end "
        "early, are asked about less. Where the number depends on answers, "
        f"{facts['iterations']} iterations are taken."
    )
