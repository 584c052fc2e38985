"""What a study would ask of a site, before it consents: every kind of answer, its size, its
protection, who gets it, and what it costs.

A plan's program is rehearsed (see `cupola.plan.rehearsal`) as if every site had this one's data; of
a study, every kind of question is made once, as large as it gets. Nobody is asked.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cupola.errors import DataError
from cupola.federation import Program, Question
from cupola.federation.message import contribution_size
from cupola.gwas import Association, Files, Site, read_variants
from cupola.gwas.cohort import problems
from cupola.gwas.files import Variants, read_people
from cupola.gwas.limits import described
from cupola.gwas.outline import outline
from cupola.gwas.site import released_numbers
from cupola.gwas.tasks import OPENLY, withheld_for_cells
from cupola.learn import Training, TrainingHost
from cupola.learn.choices import Sum
from cupola.learn.privacy_promise import unprotected
from cupola.personalize import Personalisation
from cupola.plan import compose
from cupola.plan.changing import told
from cupola.plan.forecast import Forecast, forecast
from cupola.plan.parties import learned, learned_of_study
from cupola.plan.plan import Plan
from cupola.plan.rehearsal import asked
from cupola.plan.study import StudyPlan
from cupola.secure import masked, pairwise
from cupola.secure.identity import Identity
from cupola.secure.masked import protection
from cupola.secure.roster import Roster
from cupola.sites.consent import Joined, chosen_data, nearly_the_same, objections
from cupola.sites.hosts import own_data, told_before
from cupola.sites.proposal import Proposal, read_proposal
from cupola.sites.settings import Consent, SiteSettings, read_settings


@dataclass
class Preview:
    """answers: a row for every kind of answer, with how often it is asked for ('times', None:
    depends on answers). complete: whether the whole study was played through. limits: of what the
    totals of an association study tell of single people."""

    study: str
    plan: str
    roster: str
    answers: list[dict[str, Any]]
    complete: bool
    parties: list[tuple[str, str]]
    epsilon: dict[str, Any] | None
    objections: list[str]
    members: list[tuple[str, str]] = field(default_factory=list)
    limits: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


def preview(folder: Path, plan: Path, roster: Path, data: str | None = None) -> Preview:
    """What joining would mean; nothing is joined."""
    settings = read_settings(folder, SiteSettings)
    proposal = read_proposal(plan, settings.modules)
    return foresee(folder, settings, proposal, Roster.from_json(roster.read_bytes()), data)


def foresee(
    folder: Path,
    settings: SiteSettings,
    proposal: Proposal,
    pinned: Roster,
    data: str | None = None,
) -> Preview:
    """The same, for settings that need not be written yet."""
    found = Preview(
        study=pinned.study,
        plan=proposal.digest,
        roster=pinned.digest.hex(),
        answers=[],
        complete=False,
        parties=[],
        epsilon=None,
        objections=objections(settings, proposal, pinned, data, folder),
        members=[(party.name, party.fingerprint) for party in pinned.sites],
    )
    if pinned.compensator is not None:
        found.members.append((f"{pinned.compensator.name} (compensator)",
                              pinned.compensator.fingerprint))  # fmt: skip
    chosen = chosen_data(settings, proposal, data)
    if isinstance(proposal.plan, StudyPlan):
        files = settings.cohort(chosen).files(folder)
        _outline(found, files, proposal.plan, pinned)
        found.parties += nearly_the_same(settings, folder, pinned)
        if not problems(files, proposal.plan.wanted):  # else they are among the objections
            found.limits = _limits(folder, settings, proposal.plan, pinned, chosen)
        return found
    consent = Consent(plan=proposal.digest, roster=pinned.digest.hex(), data=chosen)
    own = settings.model_copy(update={"studies": {pinned.study: consent}})
    training, host = _training(Joined(folder, pinned.study, own), proposal.plan, len(pinned.sites))
    found.parties = [
        *learned(training, told(proposal.plan)),
        *nearly_the_same(settings, folder, pinned),
    ]
    _rehearse(found, proposal.plan, training, host, settings, pinned)
    return found


def _training(
    joined: Joined[SiteSettings], plan: Plan, sites: int
) -> tuple[Training, TrainingHost]:
    """The plan's training, as if every site had this one's data."""
    data = own_data(joined, plan, None, sites)
    host = TrainingHost(compose.problem(plan, data), data)
    return compose.training(plan, host), host


def _rehearse(
    found: Preview,
    plan: Plan,
    training: Training,
    host: TrainingHost,
    settings: SiteSettings,
    roster: Roster,
) -> None:
    """Questions, and what answering them all costs."""
    whole = compose.program(plan, host, training)
    cost = forecast(plan, host, training, whole)
    found.complete = not (cost.bytes_vary or cost.epsilon_vary)
    found.epsilon = _cost(training, cost, settings)
    found.answers = training_answers(plan, training, whole, roster)


def training_answers(
    plan: Plan, training: Training, whole: Program, roster: Roster
) -> list[dict[str, Any]]:
    """Every kind of answer that a training's program asks for, with how often."""
    skip = training.skip
    if isinstance(whole, Personalisation):  # as if all sites were alike
        skip = partial(whole.skip, groups=dict.fromkeys(range(training.sites), 0))
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    known: dict[tuple[Any, ...], dict[str, Any]] = {}  # questions of one shape tell the same
    for ask in asked(whole, skip):
        q = ask.question
        shapes = tuple((n, spec.kind, tuple(spec.shape)) for n, spec in q.expects.items())
        shape = (ask.kind, q.task, q.reveals, q.protection, len(str(q.step)), shapes)
        if shape not in known:
            known[shape] = _row(ask.kind, q, plan.sum, roster)
        row = known[shape]
        key = tuple(row.values())
        rows.setdefault(key, {**row, "times": 0})["times"] += 1
    return list(rows.values())


def _cost(training: Training, cost: Forecast, settings: SiteSettings) -> dict[str, Any] | None:
    spent = cost.privacy
    if spent is None:
        return None
    return {
        "epsilon": spent["epsilon"],
        "at_most": list(cost.epsilon_vary),
        "delta": spent["delta"],
        "neighbours": spent["neighbours"],
        "against": training.mechanism.against(training),
        "unit": spent["unit"],
        "unprotected": list(unprotected(training)),
        "budget": None if settings.budget is None else settings.budget.epsilon,
    }


def _outline(found: Preview, files: Files, plan: StudyPlan, roster: Roster) -> None:
    """An association study as if every cohort had this one's variants and as many people."""
    variants = read_variants(files.bim)
    people = len(read_people(files.fam).person) * len(roster.sites)
    found.answers = study_answers(plan, variants, people, roster)
    found.parties = learned_of_study(plan.sum)


def _limits(
    folder: Path, settings: SiteSettings, plan: StudyPlan, roster: Roster, data: str
) -> list[str]:
    """The study's limits, what they cost here, and what of this data set was told before. People of
    all cohorts: as if all had as many as this one."""
    site = Site(settings.cohort(data).files(folder), plan.wanted)
    people = int(site.cohort.loaded.sum()) * len(roster.sites)
    numbers = released_numbers(plan)
    found = described(plan, people, numbers)
    if plan.limits.least_cell:
        binary = site.cohort.looks_binary if plan.binary is None else plan.binary
        genotypes = plan.trend or plan.quality.hardy_weinberg > 0
        lost = withheld_for_cells(site, plan.limits.least_cell, binary, genotypes)
        found.append(f"this site would withhold {lost:,} variants for small counts")
    if plan.regression:
        most = settings.limits.released
        try:
            before = sum(told_before(folder, data).values())
        except DataError:  # a study under way holds the book
            return [*found, "what other studies have told is not known while one is under way"]
        beyond = before + numbers / max(1, people) > most
        found.append(
            f"other studies have told {before:.2f} numbers a person; this site allows {most:g} in "
            f"all{': this study would be refused before its first total' if beyond else ''}"
        )
    return found


def study_answers(
    plan: StudyPlan, variants: Variants, people: int, roster: Roster
) -> list[dict[str, Any]]:
    """Every kind of answer that an association study asks for; variants, people: as `outline` takes
    them."""
    study, listed = Association(plan.study(), len(roster.sites)), plan.variants is not None
    return [
        {**_row(kind, question, plan.sum, roster), "times": times}
        for kind, question, times in outline(study, variants, people, listed)
    ]


class _Expected(Roster):
    """The shape of a roster before keys are known."""

    def __post_init__(self) -> None: ...


def expected_roster(
    study: str, sites: Sequence[str], minimum: int, third: str | None, changes: bool = False
) -> Roster:
    """Who would get what, in a preview: as if these had settled their keys."""
    keys = [Identity.simulated(i, name).public for i, name in enumerate(sites)]
    other = None if third is None else Identity.simulated(len(keys), third).public
    return _Expected(study, tuple(keys), other, minimum, changes=changes)


def _row(kind: str, question: Question, choice: Sum, roster: Roster) -> dict[str, Any]:
    if choice.masked and kind == "sum":
        protocol = pairwise if choice.protocol == "pairwise" else masked
        everybody = range(len(roster.sites))
        sent = dict.fromkeys(everybody, frozenset(question.expects))
        size = protocol.expected_traffic(question, roster, everybody, sent).up[0]
        who = f"coordinator: the total of at least {roster.minimum} sites"
        how = protection(question.protection, roster)
    else:
        whole = np.uint8 if question.task in OPENLY else np.int64  # lists and hashes are bytes
        types = {"float": np.float32, "int": whole, "bool": np.bool_}
        arrays: dict[str, np.ndarray] = {
            n: np.broadcast_to(np.zeros((), types[s.kind]), s.shape)
            for n, s in question.expects.items()
        }
        size, who = contribution_size(arrays), "coordinator: this site's own answer"
        how = question.protection
    numbers = sum(math.prod(spec.shape) for spec in question.expects.values())
    return {
        "task": question.task,
        "numbers": numbers,
        "bytes": size,
        "to": who,
        "reveals": question.reveals,
        "protection": how,
    }
