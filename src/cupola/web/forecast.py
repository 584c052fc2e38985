"""What a study will send and spend, before it starts: association studies, and trainings whose data
only their sites hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cupola.analysis.kinds import analysis_of
from cupola.analysis.preview import expected_roster
from cupola.data import FederatedData, SiteData
from cupola.federation import Question
from cupola.federation.message import blank, contribution_size, question_size
from cupola.gwas import Association, read_variants
from cupola.gwas.files import Variants, read_people
from cupola.gwas.forecast import foresee_study
from cupola.gwas.own_cohort import study_answers
from cupola.gwas.plan import CohortFiles, StudyPlan
from cupola.gwas.preview import outline
from cupola.gwas.tasks import PROPOSE
from cupola.learn import TrainingHost
from cupola.learn.plan import Plan
from cupola.learn.site_preview import training_answers
from cupola.secure import expected_traffic, simulated_parties
from cupola.secure.choices import Sum
from cupola.secure.roster import Roster

VARIANTS, PEOPLE = 100_000, 3000  # of a study of which no cohort is known yet
INVITED = 200  # sites at most; what each of more would be asked is the same
ITERATIONS = 6  # of Newton's method, as they usually are
ESTIMATE = (
    "only sites know their numbers of samples: each works out its own epsilon before it joins"
)


def rehearsed(plan: Plan) -> dict[str, Any]:
    """What `cupola check` says of a training that is simulated here, and what its sites are asked,
    as real sites would see it before they consent."""
    from cupola.learn import build
    from cupola.learn.check import facts

    host = build.host(plan)
    return {**facts(plan, host), "answers": _asked_of_training(plan, host)}


def _asked_of_training(plan: Plan, host: TrainingHost) -> list[dict[str, Any]]:
    from cupola.learn import build

    training = build.training(plan, host)
    whole = build.program(plan, host, training)
    names = [f"site {i + 1}" for i in range(min(training.sites, INVITED))]
    roster = _roster(plan.name, names, min(plan.sum.minimum, len(names)), plan.sum)
    return training_answers(plan, training, whole, roster)


def _roster(study: str, names: list[str], minimum: int, choice: Sum) -> Roster:
    third = choice.masked and choice.protocol == "compensator"
    return expected_roster(study, names, minimum, "compensator" if third else None)


def _asked_of_study(plan: StudyPlan, variants: Variants, people: int) -> list[dict[str, Any]]:
    names = [cohort.name for cohort in plan.cohorts]
    minimum = len(names) if plan.sum.masked else plan.sum.minimum  # its totals are of all cohorts
    return study_answers(plan, variants, people, _roster(plan.name, names, minimum, plan.sum))


def forecast(plan: StudyPlan, cohorts: list[CohortFiles], base: Path) -> dict[str, Any]:
    """Bytes by question. cohorts: those whose files are known, relative to base: of all of them the
    study is rehearsed; of some, the first one's variants stand for all."""
    sites = len(plan.cohorts)
    if cohorts:
        files = [cohort.files(base) for cohort in cohorts]
        variants = read_variants(files[0].bim)
        people = sum(len(read_people(one.fam).person) for one in files)
    else:
        variants, people = _typical(), PEOPLE
    answers = _asked_of_study(plan, variants, people)
    if len(cohorts) == sites:
        return {**_rehearsed(plan, base), "answers": answers}
    rows: list[dict[str, Any]] = []
    study = Association(plan.study(), sites)
    chunks = -(-len(variants) // plan.chunk)
    for kind, question, times in outline(study, variants, people, plan.variants is not None):
        down, up, third = _sizes(question, kind, plan)
        asked = 1 if question.task == PROPOSE else sites  # one list, whoever names its variants
        often = ITERATIONS * (1 if question.task == "gwas shared" else chunks)
        often = often if times is None else times
        every = often * (asked * (down + up) + third)
        rows.append({"task": question.task, "times": often, "sure": times is not None,
                     "down": down, "up": up, "total": every})  # fmt: skip
    return {
        "rows": rows, "total": sum(row["total"] for row in rows), "sites": sites,
        "variants": len(variants), "people": people, "known": len(cohorts),
        "iterations": ITERATIONS, "answers": answers,
        "parties": [{"party": p, "learns": w} for p, w in analysis_of(plan).parties()],
    }  # fmt: skip


def _rehearsed(plan: StudyPlan, base: Path) -> dict[str, Any]:
    """Of a study all of whose cohorts are here; bytes of an average question to and from each."""
    told = foresee_study(plan.model_copy(update={"folder": str(base)}))
    rows = []
    for row in told.rows:
        alone = row["task"] in (PROPOSE, "unmask")  # one cohort after another, a third party
        answers = row["questions"] * (1 if alone else len(plan.cohorts))
        rows.append({"task": row["task"], "times": row["questions"], "sure": not told.at_most,
                     "down": row["down"] // answers, "up": row["up"] // answers,
                     "total": row["down"] + row["up"]})  # fmt: skip
    return {
        "rows": rows, "total": told.total, "sites": len(plan.cohorts), "variants": told.variants,
        "people": told.people, "known": len(plan.cohorts), "iterations": plan.newton.iterations,
        "at_most": list(told.at_most),
        "parties": [{"party": p, "learns": w} for p, w in analysis_of(plan).parties()],
    }  # fmt: skip


def _sizes(question: Question, kind: str, plan: StudyPlan) -> tuple[int, int, int]:
    """Bytes to each cohort, from each, and to and from a third party."""
    answer = contribution_size({name: blank(spec) for name, spec in question.expects.items()})
    if kind == "gather" or not plan.sum.masked:
        return question_size(question), answer, 0
    sites = range(len(plan.cohorts))
    parties = simulated_parties(
        plan.name, seed=0, sites=len(sites), minimum=len(sites), protocol=plan.sum.protocol
    )
    sent = dict.fromkeys(sites, frozenset(question.expects))
    told = expected_traffic(question, parties, sites, sent)
    return told.down, told.up[0], told.beside_down + told.beside_up


UNJUDGED = (
    "a site with a budget of its own refuses answers that nothing protects: if all have one, there "
    "are no metrics on what they hold out"
)
SAMPLES = (100, 1000, 10_000)  # of a site whose number is its own secret; epsilon depends on it


def foresee_elsewhere(plan: Plan) -> dict[str, Any]:
    """What `cupola check` says, for sites of which nothing is known: epsilon for a few sizes."""
    from cupola.learn import build
    from cupola.learn.check import facts

    known = build.federated_data(plan)
    told = {samples: facts(plan, _alike(plan, known, samples)) for samples in SAMPLES}
    found = told[SAMPLES[1]]
    if found["privacy"]:
        groups = [one["privacy"]["groups"][0] for one in told.values()]
        found["privacy"]["groups"] = groups
        found["privacy"]["status"] = ESTIMATE
        if plan.evaluation.on != "public":
            found["privacy"]["warnings"].append(UNJUDGED)
    found["assumed"] = SAMPLES[1]
    found["answers"] = _asked_of_training(plan, _alike(plan, known, SAMPLES[1]))
    return found


def _alike(plan: Plan, known: FederatedData, samples: int) -> TrainingHost:
    """Sites that hold so many samples each, of the plan's kind."""
    from cupola.learn import build

    none = known.site(0).train
    shape = none.x.shape[1:]
    x = none.x.new_zeros(1, *shape).expand(samples, *shape)  # one row in memory
    some = replace(none, x=x, y=none.y.new_zeros(samples))
    data = FederatedData(
        len(known), lambda _: SiteData(some, test=some), kind=known.kind, classes=known.classes,
        input_shape=known.input_shape, class_names=known.class_names, public=known.public,
        name=known.name, **known.token_facts,
    )  # fmt: skip
    return TrainingHost(build.problem(plan, data), data)


def _typical() -> Variants:
    """A list as chips have it: names of ten letters, two alleles."""
    place = np.arange(VARIANTS)
    names = np.array([f"rs{7_000_000 + 13 * i}" for i in range(VARIANTS)])
    a1, a2 = np.full(VARIANTS, "A"), np.full(VARIANTS, "G")
    return Variants(1 + place * 22 // VARIANTS, 1000 + 700 * place, names, a1, a2)
