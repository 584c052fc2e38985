"""What a study would ask of a site, before it consents: every kind of answer, its size, its
protection, who gets it, and what it costs.

A plan's program is driven with answers of zeros in the place of everybody's; of a study, every kind
of question is made once, as large as it gets. Nobody is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from cupola.errors import CupolaError
from cupola.federation import Contribution, Failure, Federation, Question, Total, drive
from cupola.federation.message import contribution_size
from cupola.federation.program import Program
from cupola.gwas import Association, Files, read_variants
from cupola.gwas.files import read_people
from cupola.gwas.outline import outline
from cupola.gwas.tasks import OPENLY, PROPOSE
from cupola.learn import Training, TrainingHost
from cupola.plan import compose
from cupola.plan.parties import learned, learned_of_study
from cupola.plan.plan import Plan
from cupola.plan.privacy import promised
from cupola.plan.study import StudyPlan
from cupola.secure import expected_bytes
from cupola.secure.masked import protection
from cupola.secure.roster import Roster
from cupola.sites.consent import Joined, chosen_data, objections
from cupola.sites.hosts import own_data
from cupola.sites.proposal import Proposal, read_proposal
from cupola.sites.settings import Consent, SiteSettings, read_settings

MOST_STEPS = 300  # that are played through


@dataclass
class Preview:
    """answers: a row for every kind of answer, with how often it is asked for ('times', None:
    depends on answers). complete: whether the whole study was played through."""

    study: str
    plan: str
    roster: str
    answers: list[dict[str, Any]]
    complete: bool
    parties: list[tuple[str, str]]
    epsilon: dict[str, Any] | None
    objections: list[str]
    members: list[tuple[str, str]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class _Enough(Exception):
    pass


class _Rehearsal(Federation):
    """Answers zeros, and writes down what was asked."""

    def __init__(self, sites: int) -> None:
        super().__init__(sites)
        self.asked: list[tuple[str, Question]] = []

    def _zeros(self, kind: str, question: Question) -> dict[str, np.ndarray]:
        if len(self.asked) >= MOST_STEPS:
            raise _Enough
        self.asked.append((kind, question))
        types = {"float": np.float32, "int": np.int64, "bool": np.bool_}
        return {n: np.zeros(s.shape, types[s.kind]) for n, s in question.expects.items()}

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        arrays = self._zeros("sum", question)
        weight = float(len(sites))
        return Total(
            {n: a.astype(np.float64) for n, a in arrays.items()},
            dict.fromkeys(arrays, weight),
            weight,
            list(sites),
        )

    def gather(self, question: Question, sites: Sequence[int]) -> dict[int, Contribution]:
        arrays = self._zeros("gather", question)
        return {site: Contribution(arrays) for site in sites}

    def _ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        raise NotImplementedError


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
        objections=objections(settings, proposal, pinned, data),
        members=[(party.name, party.fingerprint) for party in pinned.sites],
    )
    if pinned.compensator is not None:
        found.members.append((f"{pinned.compensator.name} (compensator)",
                              pinned.compensator.fingerprint))  # fmt: skip
    chosen = chosen_data(settings, proposal, data)
    if isinstance(proposal.plan, StudyPlan):
        files = settings.cohort(chosen).files(folder)
        _outline(found, files, proposal.plan, proposal, pinned)
        return found
    consent = Consent(plan=proposal.digest, roster=pinned.digest.hex(), data=chosen)
    own = settings.model_copy(update={"studies": {pinned.study: consent}})
    training, host = _training(Joined(folder, pinned.study, own), proposal.plan, len(pinned.sites))
    found.parties = learned(training)
    found.epsilon = _cost(training, host, settings)
    _rehearse(found, compose.program(proposal.plan, host, training), proposal, pinned)
    return found


def _training(
    joined: Joined[SiteSettings], plan: Plan, sites: int
) -> tuple[Training, TrainingHost]:
    """The plan's training, as if every site had this one's data."""
    data = own_data(joined, plan, None, sites)
    host = TrainingHost(compose.problem(plan, data), data)
    return compose.training(plan, host), host


def _cost(training: Training, host: TrainingHost, settings: SiteSettings) -> dict[str, Any] | None:
    promise = promised(training, host)
    if promise is None:
        return None
    return {
        "epsilon": promise.epsilon,
        "delta": promise.delta,
        "neighbours": promise.neighbours,
        "against": promise.against,
        "unit": promise.unit,
        "unprotected": list(promise.unprotected),
        "budget": None if settings.budget is None else settings.budget.epsilon,
    }


def _rehearse(found: Preview, program: Program, proposal: Proposal, roster: Roster) -> None:
    rehearsal = _Rehearsal(len(roster.sites))
    try:
        drive(program, rehearsal)
        found.complete = True
    except _Enough:
        pass
    except (CupolaError, ArithmeticError, ValueError, KeyError, IndexError):
        pass  # zeros lead no further: what follows depends on answers
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for kind, question in rehearsal.asked:
        row = _row(kind, question, proposal, roster)
        key = tuple(row.values())
        rows.setdefault(key, {**row, "times": 0})["times"] += 1
    found.answers = list(rows.values())


def _outline(
    found: Preview, files: Files, plan: StudyPlan, proposal: Proposal, roster: Roster
) -> None:
    """An association study as if every cohort had this one's variants and as many people."""
    sites, listed = len(roster.sites), plan.variants is not None
    variants, people = read_variants(files.bim), len(read_people(files.fam).person) * sites
    for kind, question, times in outline(
        Association(plan.study(), sites), variants, people, listed
    ):
        found.answers.append({**_row(kind, question, proposal, roster), "times": times})
    found.parties = learned_of_study(plan.sum)


def _row(kind: str, question: Question, proposal: Proposal, roster: Roster) -> dict[str, Any]:
    choice = proposal.plan.sum
    hidden = choice.masked and kind == "sum"
    sites = len(roster.sites)
    if hidden:
        size = expected_bytes(question, sites, sites, choice.protocol)[1]
        who = f"coordinator: the total of at least {roster.minimum} sites"
        how = protection(question.protection, roster.minimum)
    else:
        whole = np.uint8 if question.task in OPENLY else np.int64  # lists and hashes are bytes
        types = {"float": np.float32, "int": whole, "bool": np.bool_}
        arrays: dict[str, np.ndarray] = {
            n: np.broadcast_to(np.zeros((), types[s.kind]), s.shape)
            for n, s in question.expects.items()
        }
        whose = "the first site's" if question.task == PROPOSE else "this site's"
        size, who = contribution_size(arrays), f"coordinator: {whose} own answer"
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
