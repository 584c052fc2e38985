"""What an association study will send, rehearsed before any total over genotypes is made.

People, covariates and the list of variants are answered as in the study; where cohorts propose the
list, each counts its own alleles, to leave rare variants out. The rest is a matter of shapes. For
chi-square all of it is certain; else it is the most it can be, with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupola.analysis.check import rows_of
from cupola.analysis.grounds import of_study
from cupola.analysis.rehearsal import AnsweredRehearsal, rehearse_answered
from cupola.analysis.simulated import Simulated
from cupola.association import variant_list_codec
from cupola.association.agreement import left_out
from cupola.association.analysis import AssociationAnalysis
from cupola.association.clumping import MOST
from cupola.association.limits import described
from cupola.association.plan import StudyPlan
from cupola.association.simulated_cohorts import SimulatedCohorts
from cupola.association.site import FINGERPRINTS, StudyHost, released_numbers
from cupola.association.structure.genome_tasks import foreseen
from cupola.association.tasks import PROPOSE, smallest, withheld_for_cells
from cupola.errors import FederationError
from cupola.federation.message import Arrays, Question, blank
from cupola.federation.program import Ask, State
from cupola.secure.replayed_totals import told_answers_size, told_size

ANSWERED = ("gwas people", "gwas moments", "gwas agree", "gwas groups", "gwas shared", PROPOSE,
            FINGERPRINTS)  # fmt: skip
WIDEST = 24  # letters of a number of 64 bits
USUAL = 6  # iterations of Newton's method
USUAL_SUMS = 12  # of a mixed model


@dataclass(frozen=True)
class StudyForecast:
    """rows: by task. down, up: in all. at_most: why they may be less; exact where there is none.
    usual: with as many iterations as a logistic regression or a mixed model usually takes. told:
    what real cohorts are told in addition: totals, and the list that cohorts propose. left_out,
    agreement, warnings: of the list, as in the study's result. list_hash: of the list. limits: of
    what totals tell of single people, and what they cost."""

    rows: tuple[dict[str, Any], ...]
    down: int
    up: int
    at_most: tuple[str, ...]
    usual: int
    variants: int
    people: int
    told: int
    list_hash: str
    left_out: dict[str, int]
    agreement: dict[str, int]
    warnings: tuple[str, ...]
    limits: tuple[str, ...]

    @property
    def counted(self) -> dict[str, Any]:
        """What the list leaves out, as result.json has it; filters and tests come on top."""
        return {
            "left_out": self.left_out, "without_result": {}, "agreement": self.agreement,
            "warnings": list(self.warnings),
        }  # fmt: skip

    @property
    def total(self) -> int:
        return self.down + self.up


def foresee_study(plan: StudyPlan) -> StudyForecast:
    """Rehearse a study whose cohorts are all here."""
    state, reach = _rehearsed(plan)
    usual = reach
    if plan.test == "logistic" and (plan.newton.iterations > USUAL or plan.newton.firth):
        newton = plan.newton.model_copy(update={"iterations": USUAL, "firth": False})
        _, usual = _rehearsed(plan.model_copy(update={"newton": newton}))
    if plan.test == "mixed" and plan.mixed.sums > USUAL_SUMS:
        mixed = plan.mixed.model_copy(update={"sums": USUAL_SUMS})
        _, usual = _rehearsed(plan.model_copy(update={"mixed": mixed}))
    rows = tuple(reach.rows.values())
    return StudyForecast(
        rows,
        sum(row["down"] for row in rows),
        sum(row["up"] for row in rows),
        tuple(_reasons(plan)),
        sum(row["down"] + row["up"] for row in usual.rows.values()),
        len(state.arrays["reason"]),
        state.values["people"]["loaded"],
        reach.told,
        variant_list_codec.fingerprint(variant_list_codec.unpack(state.arrays["list"])),
        left_out(state.arrays["reason"]),
        state.values["own"] | state.values["found"],
        (*state.values["warnings"], *_shared(plan, state)),
        tuple(_limits(plan, state, reach.host)),
    )


def check(plan: StudyPlan) -> dict[str, Any]:
    """Everything `cupola check` says, as plain values."""
    told = foresee_study(plan)
    sent = {"down": told.down, "up": told.up, "total": told.total, "usual": told.usual,
            "told": told.told, "at_most": list(told.at_most), "rows": list(told.rows)}  # fmt: skip
    return {
        "name": plan.name,
        "test": plan.test,
        "trait": plan.trait.column,
        "columns": plan.columns,
        "sum": plan.sum.kind,
        "cohorts": len(plan.cohorts),
        "variants": told.variants,
        "people": told.people,
        **told.counted,
        "list_hash": told.list_hash,
        "bytes": sent,
        "limits": list(told.limits),
        "parties": rows_of(AssociationAnalysis(plan).parties()),
        "grounds": [ground.to_json() for ground in of_study(plan.sum, len(plan.cohorts))],
    }


def _reasons(plan: StudyPlan) -> list[str]:
    quality, found = plan.quality, []
    if plan.regression:
        found.append("somebody is taken to lack a call in every chunk of variants")
        if quality.maf > 0 or quality.missing < 1 or quality.hardy_weinberg > 0:
            found.append("every variant is taken to pass the filters")
        if plan.sum.masked:
            found.append("means of covariates have more or fewer digits")
    if plan.whole_genome is not None:
        found.append("every common variant on an autosome is taken to be a marker")
    if plan.components is not None:
        found.append(f"components may be found before {plan.components.sums} sums")
        found.append("every common variant is taken for a marker, withheld by nobody")
    if plan.scores:
        found.append("means of components are not known yet")
    if plan.whole_genome is not None:
        found.append("means of predictions are not known yet")
    if plan.clump:
        found.append(f"hits are taken to be one region of {MOST:,} variants (clump)")
    if plan.study().scored:
        found.append(
            f"of all variants {plan.score.gone_on:.2g} are taken to go on after the "
            "score test, twice as many as do by chance (more would be sent if more did)"
        )
    if plan.test == "logistic":
        found.append(f"variants may converge before {plan.newton.iterations} iterations")
    if plan.test == "mixed":
        found.append(f"the mixed model may converge before {plan.mixed.sums} sums")
        if plan.mixed.maf > 0:
            found.append("every variant of chromosomes 1 to 22 is taken to be a marker")
    return found


def _limits(plan: StudyPlan, state: State, host: StudyHost) -> list[str]:
    found = described(plan, state.values["people"]["tested"], released_numbers(plan))
    least = plan.limits.least_cell
    genotypes = plan.trend or plan.quality.hardy_weinberg > 0
    for site in host.cohorts if least else ():
        lost = withheld_for_cells(site, least, state.values["binary"], genotypes)
        found.append(f"{site.files.name} would withhold {lost:,} variants for small counts")
    whole = plan.whole_genome
    if whole is not None:
        tested, binary = state.values["people"]["tested"], state.values["binary"]
        told = (foreseen(site, whole, tested, binary) for site in host.cohorts)
        found += [f"{s.files.name}: {line}" for s, line in zip(host.cohorts, told)]
    return found


def _shared(plan: StudyPlan, state: State) -> list[str]:
    names = [cohort.name for cohort in plan.cohorts]
    pairs = state.values.get("shared_people", [])
    return [f"cohorts '{names[a]}' and '{names[b]}' share {n:,} people" for a, b, n in pairs]


def _rehearsed(plan: StudyPlan) -> tuple[State, _StudyRehearsal]:
    analysis = AssociationAnalysis(plan)
    host = analysis.host()
    program = analysis.program(host)
    reach = _StudyRehearsal(analysis, host, _answered(plan).__contains__)
    try:
        return rehearse_answered(program, reach, program.skip), reach
    except FederationError as error:
        raise Simulated().explained(host, error) from None


def _answered(plan: StudyPlan) -> tuple[str, ...]:
    """What cohorts answer in a rehearsal. They have no components and no predictions there: what
    takes those is left open."""
    left: tuple[str, ...] = ("gwas moments", "gwas shared") if plan.scores else ()
    left += ("gwas shared",) if plan.whole_genome else ()
    return tuple(task for task in ANSWERED if task not in left)


class _StudyRehearsal(AnsweredRehearsal):
    """Cohorts that answer what takes no genotypes. told: bytes of totals that real cohorts are told
    in addition."""

    host: SimulatedCohorts
    told = 0

    def put(self, ask: Ask) -> bool:
        if ask.kind == "sum":
            self.told += len(self.host) * told_size(ask.question, len(self.host))
        answered = super().put(ask)
        if ask.kind == "gather" and ask.question.decides:
            self.told += len(self.host) * told_answers_size(ask.question, self._told)
        return answered

    def _answers(self, question: Question, sites: Sequence[int]) -> dict[int, Arrays | str]:
        unknown = self.parties is not None or not self.answered("gwas moments")
        options, numbers = question.options, [*question.options.get("prediction", ())]
        if unknown:
            numbers += [*(options.get("shift") or ()), *(options.get("width") or ())]
        # Totals of masked sums are rounded, components and predictions not known: means may have
        # other digits in the study.
        more = sum(WIDEST - len(json.dumps(number)) for number in numbers)
        if more:
            self.row(question.task, "sum")["down"] += len(sites) * more
        return super()._answers(question, sites)

    def computed(self, task: str) -> bool:
        return task in ANSWERED and self.answered(task)

    def blank(self, question: Question) -> Arrays:
        types = {n: smallest(s) for n, s in question.expects.items()}
        return {n: blank(s, np.zeros((), types[n])) for n, s in question.expects.items()}
