"""What a plan will send and spend: all of its program rehearsed, before anything runs.

In a simulation nearly all of it is certain, since who is drawn and who drops out follows from the
seed. What only answers can tell is said, and bounded from above: groups of similar sites, when
validation data stop a training, the digits of a clip that moves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from cupola.analysis.rehearsal import LOOKED, Rehearsal, rehearse
from cupola.analysis.simulated import simulated_keys
from cupola.errors import FederationError, PlanError
from cupola.federation.message import blank, contribution_size, question_size
from cupola.federation.program import Ask, Program, State
from cupola.secure.simulation import Parties, expected_traffic
from cupola.training import build
from cupola.training.choices import Participation
from cupola.training.loop import Training
from cupola.training.participation import expected_sites, most_participations
from cupola.training.personalise.jobs import Job
from cupola.training.personalise.personal_choices import GROUPED
from cupola.training.personalise.personal_program import Personalisation
from cupola.training.plan import Plan
from cupola.training.spending import accounted, rehearsed_book
from cupola.training.workspace import TrainingHost

DIGITS = 48  # letters that a number of any size may have in a question and its protection
TRAINING, PERSONAL = "training", "personalisation"


@dataclass(frozen=True)
class Forecast:
    """What a whole plan sends and spends.

    sites: asked in a round (a mean under Poisson sampling). per_site: down and up, of the training
    question, of a site that trains all that is trained. per_round: of the training, with its
    evaluation. rows: by phase and task. down, up: in all. bytes_vary, epsilon_vary: why a figure is
    an upper bound; exact where there is no reason. privacy: as result.json will have it.
    """

    sites: float
    per_site_down: int
    per_site_up: int
    per_round: float
    rows: tuple[dict[str, Any], ...]
    down: int
    up: int
    bytes_vary: tuple[str, ...]
    epsilon_vary: tuple[str, ...]
    privacy: dict[str, Any] | None

    @property
    def total(self) -> int:
        return self.down + self.up


def foresee(plan: Plan) -> Forecast:
    """The forecast of a plan whose sites are simulated."""
    host = build.host(plan)
    program = build.training(plan, host)
    return forecast(plan, host, program, build.program(plan, host, program))


def forecast(plan: Plan, host: TrainingHost, program: Training, whole: Program) -> Forecast:
    """Rehearse a plan. whole: its program, of which `program` is the training."""
    reach = Rehearsal(
        host,
        program.space,
        seed=plan.seed,
        quorum=plan.engine.quorum,
        parties=_parties(plan, len(host)),
        book=rehearsed_book(plan),
    )
    vary = _Reasons(program)
    skip, phase = program.skip, lambda _: TRAINING
    labels: dict[int, int] = {}
    certain = True
    if isinstance(whole, Personalisation):
        labels, certain = _groups(whole, reach)
        skip, phase = partial(whole.skip, groups=labels), _phase
    try:
        state = rehearse(whole, reach, skip, phase)
    except FederationError as error:
        raise PlanError(f"this plan would stop before its end: {error}") from None
    if isinstance(whole, Personalisation) and not certain:
        _in_groups(whole, reach, state, list(labels), vary)
    vary.about(reach, plan)
    rows = [row for row in reach.rows.values() if row["questions"]]
    training = sum(r["down"] + r["up"] for r in rows if r["phase"] == TRAINING)
    down, up = reach.first.get(program.task, (0, 0))
    return Forecast(
        sites=expected_sites(program.participation, program.sites),
        per_site_down=down,
        per_site_up=up,
        per_round=training / program.rounds,
        rows=tuple(rows),
        down=sum(row["down"] for row in rows),
        up=sum(row["up"] for row in rows),
        bytes_vary=tuple(vary.bytes),
        epsilon_vary=tuple(vary.epsilon) if reach.book is not None else (),
        privacy=_spent(plan, program, whole, reach),
    )


def _parties(plan: Plan, sites: int) -> Parties | None:
    """Keys like those of the run."""
    from cupola.training.analysis import TrainingAnalysis

    return simulated_keys(TrainingAnalysis(plan), sites) if plan.sum.masked else None


def _phase(state: State) -> str:
    return PERSONAL if "personal" in state.values else TRAINING


def _spent(
    plan: Plan, program: Training, whole: Program, reach: Rehearsal
) -> dict[str, Any] | None:
    if reach.book is None:
        return None
    release = None if plan.personalise is None else plan.personalise.release
    personal = isinstance(whole, Personalisation)
    histories, open_answers = reach.book.histories(), reach.book.unprotected
    found = accounted(program, histories, open_answers, program.rounds, personal, release)
    for group in found["groups"]:
        members = group.pop("members")
        held = reach.sizes.train[members] if found["unit"] == "example" else np.zeros(1, np.int64)
        group |= {"samples": int(held.max()), "least_samples": int(held.min())}
        group["answers"] = max((reach.charged[site] for site in members), default=0)
    return found


class _Reasons:
    """Why figures are upper bounds."""

    def __init__(self, program: Training) -> None:
        self.program = program
        self.bytes: list[str] = []
        self.epsilon: list[str] = []

    def both(self, reason: str) -> None:
        self.bytes.append(reason)
        self.epsilon.append(reason)

    def about(self, reach: Rehearsal, plan: Plan) -> None:
        program = self.program
        if program.evaluation.patience:
            self.both("evaluation.patience may stop the training earlier")
        if program.privacy.quantile is not None:
            self._digits(reach)
        if reach.sizes.guessed:
            self.bytes.append(
                f"sites beyond the first {LOOKED:,} are taken to hold data to test on"
            )
        if reach.sparse:
            self.bytes.append("which sites share masks is drawn by them")
        if plan.task != "train":
            self.both(f"only '{plan.task}' knows what it answers")

    def _digits(self, reach: Rehearsal) -> None:
        """A clip that follows a quantile has more digits than the plan's, in every question."""
        for row in reach.rows.values():
            if row["task"] == self.program.task and row["kind"] == "sum":
                written = 2 + (
                    len(list(self.program.space.names)) if self.program.sum.masked else 0
                )
                row["down"] += row["questions"] * self.program.sites * DIGITS * written
        self.bytes.append("the clip moves, and its digits are sent")


# Groups of similar sites, which only the training can find


def _groups(whole: Personalisation, reach: Rehearsal) -> tuple[dict[int, int], bool]:
    """The group of every site that has data, and whether that is certain; else all stand alone."""
    sites = np.flatnonzero(reach.sizes.train > 0).tolist()
    choice = whole.choice
    if "pfa" not in choice.methods or not sites:
        return {}, True
    if choice.groups == 1 or len(sites) < max(3, choice.minimum):
        return dict(zip(sites, whole.group(np.zeros((len(sites), 1))).tolist())), True
    return dict(zip(sites, range(len(sites)))), False


def _in_groups(
    whole: Personalisation,
    reach: Rehearsal,
    state: State,
    sites: list[int],
    vary: _Reasons,
) -> None:
    """Add the most that groups can cost, as if every site were in one that trains."""
    choice = whole.choice
    reach.phase = PERSONAL
    for method in choice.methods:
        if method in GROUPED:
            everybody = Job("train", method, len(sites) - 1, tuple(sites))
            fewest = replace(everybody, sites=tuple(sites[: choice.minimum]))
            _most_bytes(whole, reach, whole.asks_of_group(state, everybody), sites)
            asks = list(whole.asks_of_group(state, fewest))
            _most_charges(whole, reach, asks, sites)
            state = replace(state, step=state.step + len(asks))  # a step is charged for once
    if choice.small == "finetune":
        vary.bytes.append("sites outside groups adapt alone, counted beside the groups' training")
    reason = "which sites form groups, and how large, is known after the training"
    vary.bytes.append(reason)
    vary.epsilon += [reason] if whole.training.privacy.on else []


def _most_bytes(
    whole: Personalisation, reach: Rehearsal, asks: Iterator[Ask], sites: Sequence[int]
) -> None:
    """Every group's questions, wherever its borders are."""
    for ask in asks:
        trains = ask.question.task == whole.training.task
        share = _most_asked(whole.adaptation.participation, whole.choice.minimum, len(sites))
        many = math.ceil(len(sites) * share) if trains else len(sites)
        down, up = 0.0, 0.0
        for size in {whole.choice.minimum, len(sites)}:
            there, back = _of_each(reach, ask, sites[:size])
            down, up = max(down, there), max(up, back)
        row = reach.row(ask.question.task, ask.kind)
        row["questions"] += 1
        row["down"] += math.ceil(many * down)
        row["up"] += math.ceil(many * up)


def _most_asked(choice: Participation, least: int, most: int) -> float:
    """The largest share of a group's sites that is asked at once."""
    if choice.kind in ("all", "poisson"):
        return 1.0
    return max(min(1.0, expected_sites(choice, m) / m) for m in range(least, most + 1))


def _of_each(reach: Rehearsal, ask: Ask, sites: Sequence[int]) -> tuple[float, float]:
    """Bytes to and from each of these sites, with its part of what the protocol takes beside."""
    question = ask.question
    full = {n: blank(spec, question.arrays.get(n)) for n, spec in question.expects.items()}
    if ask.kind == "gather" or reach.parties is None:
        return question_size(question), contribution_size(full)
    sent = dict.fromkeys(sites, frozenset(full))
    told = expected_traffic(question, reach.parties, sites, sent)
    each = len(sites)
    return told.down + told.beside_down / each, (sum(told.up) + told.beside_up) / each


def _most_charges(
    whole: Personalisation, reach: Rehearsal, asks: Sequence[Ask], sites: Sequence[int]
) -> None:
    """Charge every site as if it were in the smallest group, and asked as often as can be."""
    training, choice = whole.adaptation, whole.adaptation.participation
    most = most_participations(choice, whole.choice.minimum, training.training_rounds)
    leaves = choice.dropouts or (choice.stragglers and not choice.keep_stragglers)
    periods: set[int] = set()
    for ask in asks:
        if ask.question.task != training.task:
            reach._charged(ask.question, sites)
            continue
        pattern = ask.question.options.get("pattern")
        if pattern is None or leaves:  # who drops out has paid, and pays again
            pays = most > 0
            most -= 1
        else:  # one charge covers a period; who comes once only pays for one
            pays = pattern["after"] not in periods and not (
                periods and choice.kind == "at-most-once"
            )
            periods.add(pattern["after"])
        if pays:
            reach._charged(ask.question, sites)
