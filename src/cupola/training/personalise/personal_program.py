"""Personalisation as a step machine: federated training first, then what follows from its model.

    train the federated model -> vectors of every site (pfa) -> groups
      -> the federated model judged at every site
      -> each method in turn: groups train, or sites adapt alone; judged at every site

Every job of the second part is a few steps, so that a run can stop and go on anywhere. Models are
chosen on validation data: a group's on the sum over its sites, a site's own on its own part; the
start counts among the candidates. Test data choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cupola.base.randomness import derive
from cupola.errors import PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Contribution, Question, contribution_size
from cupola.federation.program import Ask, Reply, State
from cupola.training.choices import Evaluation
from cupola.training.loop import Training
from cupola.training.metrics import expected
from cupola.training.personalise.grouping import from_matrix, from_references, shuffled
from cupola.training.personalise.jobs import Job, jobs_of
from cupola.training.personalise.layers import Layer, find_layers
from cupola.training.personalise.parts import (
    SPLITS,
    ask_adapt,
    course,
    model_of,
    pooled,
    prefixed,
    scored,
    unprefixed,
    with_facts,
    within,
)
from cupola.training.personalise.personal_choices import FEDERATED, GROUPED, Personalise
from cupola.training.personalise.similarity import (
    draw_references,
    pairs,
    require_pairs,
    to_references,
)
from cupola.training.personalise.sparsity import ask_sparsity, drawn_channels
from cupola.training.workspace import Problem, frozen_part, probe_inputs

Make = Callable[[Sequence[int], int], Training]  # (sites, seed) -> their training


def require_groups(choice: Personalise, sites: int, make: Make) -> None:
    """Refuse groups that cannot be, or that could not train."""
    if not choice.references:
        require_pairs(sites)
    groups = 1 if choice.groups == "found" else choice.groups
    if groups > sites:
        raise PlanError(f"personalise.groups = {groups}, but there are {sites} sites")
    if sites - groups + 1 < choice.minimum:
        raise PlanError(
            f"personalise: none of {groups} groups of {sites} sites can have {choice.minimum} "
            "(personalise.minimum), so none would train; ask for fewer groups, or a lower minimum"
        )
    least = sites if choice.groups == 1 else choice.minimum
    try:
        make(range(least), 0)
    except PlanError as error:
        raise PlanError(
            f"personalise: a group may be as small as {least} sites (personalise.minimum), which "
            f"cannot train: {error}; say how groups take part in personalise.adapt.participation"
        ) from None


@dataclass
class Personalisation:
    """A program: `training`, then the methods of `choice`.

    make: the adaptation of a group as a training of its own. splits: what sites hold out.
    State arrays, beside the training's: 'group/...' (a group's training under way), 'judged/...'
    (a group's model to be judged), 'personal/N/...' (of PFA's group N), 'sparsity/i' (sites x
    channels). State values: 'personal' {'done' (jobs), 'waiting' (splits to be judged), 'inner'
    (a group's training), 'answered' (sites with a vector), 'groups', 'random', 'scores' (method ->
    site -> split -> metrics), 'history', 'kept' (rounds that were chosen), 'vector_bytes'}.
    """

    training: Training
    choice: Personalise
    make: Make
    splits: frozenset[str] = frozenset()
    private: bool = False  # a budget forbids answers that nothing protects

    def __post_init__(self) -> None:
        self._groups: dict[tuple[str, int, tuple[int, ...]], Training] = {}
        self.adaptation = self.make(range(self.training.sites), self.seed)
        self.layers: tuple[Layer, ...] = ()
        if "pfa" in self.choice.methods:
            probe = probe_inputs(self.problem, 2).to(self.training.space.device)
            self.layers = find_layers(self.training.space.module, probe, self.choice.layers)
            require_groups(self.choice, self.training.sites, self.make)
        for method in self.choice.federated():
            try:
                self.of_all(method)
            except PlanError as error:
                raise PlanError(
                    f"personalise: '{method}' cannot adapt: {error} (local work is set in "
                    f"personalise.adapt, options of the method in personalise.options.{method})"
                ) from None
        chosen = drawn_channels(self.layers, self.choice.channels, self.seed)
        self.channels = [(layer.name, c) for layer, c in zip(self.layers, chosen)]

    @property
    def problem(self) -> Problem:
        return self.training.problem

    @property
    def seed(self) -> int:
        return self.training.seed

    # The federated training comes first

    def start(self) -> State:
        return self.training.start()

    def ask(self, state: State) -> Ask | None:
        if "personal" not in state.values:
            return self.training.ask(state)
        job = self.job(state)
        return None if job is None else self._ask(state, job)

    def answer(self, state: State, reply: Reply) -> State:
        if "personal" not in state.values:
            state = self.training.answer(state, reply)
            return self._begin(state) if self._trained(state) else state
        job = self.job(state)
        assert job is not None
        return self._answer(state, job, reply)

    def skip(self, state: State, answered: bool = True, *, groups: Mapping[int, int]) -> State:
        """The state after the next step, for a rehearsal (see `Training.skip`). groups: the group
        of every site that would tell its vector, which only the vectors could say."""
        if "personal" not in state.values:
            state = self.training.skip(state, answered)
            return self._begin(state) if self._trained(state) else state
        job = self.job(state)
        assert job is not None
        if job.kind == "train":
            inner = self.inner(job).skip(self._inner_state(state), answered)
            return self._went_on(state, job, inner, [])
        if job.kind != "vectors":
            return self._answer(state, job, {})
        labels = np.array(list(groups.values()), np.int64)
        return self._leave(
            replace(state, step=state.step + 1),
            answered=list(groups),
            groups=labels.tolist(),
            random=shuffled(labels, self.seed).tolist(),
        )

    def _trained(self, state: State) -> bool:
        values = state.values
        ended = values["round"] >= self.training.rounds or bool(values["stopped"])
        return ended and not values["pending"]

    def _begin(self, state: State) -> State:
        personal: dict[str, Any] = {
            "done": 0,
            "waiting": [],
            "inner": None,
            "answered": [],
            "groups": [],
            "random": [],
            "scores": {},
            "history": [],
            "kept": {},
            "vector_bytes": 0,
        }
        return self._enter(State(state.step, state.arrays, {**state.values, "personal": personal}))

    # Jobs

    def jobs(self, personal: Mapping[str, Any]) -> list[Job]:
        """All jobs that are known by now."""
        return jobs_of(self.choice, self.training.sites, personal)

    def job(self, state: State) -> Job | None:
        personal = state.values["personal"]
        jobs = self.jobs(personal)
        return jobs[personal["done"]] if personal["done"] < len(jobs) else None

    def progress(self, state: State) -> tuple[int, int]:
        """Jobs done, and jobs known by now."""
        personal = state.values["personal"]
        return personal["done"], len(self.jobs(personal))

    def _enter(self, state: State) -> State:
        """Prepare the job that comes next."""
        job = self.job(state)
        if job is None:
            return state
        if job.kind == "judge":
            waiting = [split for split in SPLITS if split in self.splits]
            if not waiting:
                return self._leave(state)
            return with_facts(state, waiting=waiting)
        if job.kind == "train":
            return self._enter_group(state, job)
        return state

    def _leave(self, state: State, **personal: Any) -> State:
        """The job is done."""
        gone = ("group/", "judged/") if personal.pop("clear", True) else ("group/",)
        arrays = {n: a for n, a in state.arrays.items() if not n.startswith(gone)}
        done = state.values["personal"]["done"] + 1
        state = with_facts(
            State(state.step, arrays, state.values), done=done, inner=None, **personal
        )
        return self._enter(state)

    def first_round(self, personal: Mapping[str, Any], job: Job) -> int:
        """The number of a job's first round: no two uses of a site's randomness share one, and no
        two groups are asked the same question."""
        place = list(self.choice.methods).index(job.method)  # type: ignore[arg-type]
        parts = max(personal["groups"], default=0) + 2  # of a method: its groups, and sites alone
        each = max(self.adaptation.training_rounds, self.choice.rounds)
        before = self.training.training_rounds + 1  # the vectors have a round of their own
        return before + 1 + each * (place * parts + job.group + 1)

    # Questions and answers

    def _ask(self, state: State, job: Job) -> Ask:
        if job.kind == "vectors":
            question = ask_sparsity(
                state,
                self.federated(state),
                self.channels,
                self.choice.release,
                self.training.training_rounds + 1,
            )
            return Ask("gather", question, job.sites)
        if job.kind == "judge":
            return Ask("gather", self._ask_judgement(state, job), job.sites)
        if job.kind == "alone":
            return Ask("gather", self._ask_alone(state, job), job.sites)
        return self._ask_group(state, job)

    def _answer(self, state: State, job: Job, reply: Reply) -> State:
        if job.kind == "train":
            return self._group_answered(state, job, reply)
        assert isinstance(reply, dict)
        state = replace(state, step=state.step + 1)
        if job.kind == "vectors":
            return self._grouped(state, reply)
        if job.kind == "alone":
            return self._leave(state, **self._scored(state, job, reply))
        split, *waiting = state.values["personal"]["waiting"]
        told = {s: {f"{split}/{n}": a for n, a in c.arrays.items()} for s, c in reply.items()}
        found = self._scored(state, job, {s: Contribution(a) for s, a in told.items()})
        if waiting:
            return with_facts(state, waiting=waiting, **found)
        return self._leave(state, waiting=[], **found)

    def federated(self, state: State) -> Arrays:
        """The federated model: the best on validation data if kept, else the last; and what stands
        for its frozen part."""
        arrays = state.arrays | unprefixed("best/", state.arrays)
        return model_of(arrays) | frozen_part(arrays)

    def _grouped(self, state: State, reply: dict[int, Contribution]) -> State:
        sites = sorted(reply)
        arrays = {
            f"sparsity/{i}": np.stack([reply[s].arrays[f"sparsity/{i}"] for s in sites])
            for i in range(len(self.channels) if sites else 0)
        }
        labels = self.group(arrays["sparsity/0"]) if sites else np.zeros(0, np.int64)
        state = State(state.step, {**state.arrays, **arrays}, state.values)
        return self._leave(
            state,
            answered=sites,
            groups=labels.tolist(),
            random=shuffled(labels, self.seed).tolist(),
            vector_bytes=sum(contribution_size(c.arrays) for c in reply.values()),
        )

    def group(self, vectors: np.ndarray) -> np.ndarray:
        """FSC and CSM: the group of each vector."""
        choice = self.choice
        count = None if choice.groups == "found" else choice.groups
        if not choice.references:
            return from_matrix(pairs(vectors), count)
        references = draw_references(len(vectors), choice.references, self.seed)
        return from_references(to_references(vectors, references), count)

    def _ask_judgement(self, state: State, job: Job) -> Question:
        split = state.values["personal"]["waiting"][0]
        model = unprefixed("judged/", state.arrays) or self.federated(state)
        options = self._evaluation(split)
        expects = expected(self.problem, options)
        if job.method in FEDERATED:
            methods = self.inner(job).methods
            model = methods.travels(State(0, model, {}))
            options |= methods.judged()
        return Question(
            "evaluate",
            model | frozen_part(self.federated(state)),
            options,
            expects,
            step=state.step,
            round=self.training.training_rounds + 1,
            reveals=f"each site's own: counts of the model ({job.method}) on {split} data",
        )

    def _evaluation(self, split: str) -> dict[str, Any]:
        judge = self.training.evaluation
        return {"split": split, "auroc": 0, "batch_size": judge.batch_size}

    def _ask_alone(self, state: State, job: Job) -> Question:
        method = "finetune" if job.method in GROUPED else job.method
        arrays = self.federated(state)
        if method == "scratch":
            arrays |= model_of(self.training.start().arrays)
        options = {
            "method": method,
            "local": self.adaptation.local.model_dump(exclude_defaults=True, mode="json"),
            **self._evaluation("test"),
            **self.choice.alone(self.training.evaluation),
        }
        first = self.first_round(state.values["personal"], job)
        return ask_adapt(self.problem, arrays, options, state.step, first)

    def _scored(self, state: State, job: Job, reply: Mapping[int, Contribution]) -> dict[str, Any]:
        """Scores of a method with those of these sites added, and the rounds that were kept."""
        return scored(state.values["personal"], job.method, reply)

    # A group's training: a program within the program

    def inner(self, job: Job) -> Training:
        """The adaptation of a group or of all sites, judged on their validation data only."""
        key = (job.method, job.group, job.sites)
        if key not in self._groups:
            seed = derive(self.seed, f"personalise {job.method}", job.group)
            judge = self.training.evaluation
            watched = "validation" in self.splits and not self.private
            method = self.choice.federated().get(job.method)
            own: dict[str, Any] = {} if method is None else {"method": method, "goes_on": True}
            self._groups[key] = replace(
                self.make(job.sites, seed),
                **own,
                public={},
                site_splits=frozenset({"validation"} if watched else ()),
                evaluation=Evaluation(
                    every=judge.every,
                    metric=judge.metric,
                    best=watched and method is None,  # sites keep no earlier ones of their own
                    batch_size=judge.batch_size,
                ),
            )
        return self._groups[key]

    def of_all(self, method: str) -> Training:
        """The adaptation of all sites together by a method."""
        return self.inner(Job("train", method, sites=tuple(range(self.training.sites))))

    def asks_of_group(self, state: State, job: Job) -> Iterator[Ask]:
        """All questions to a group, for a rehearsal. state: any of this program's second part."""
        state = self._enter_group(with_facts(state, groups=[job.group]), job)
        training = self.inner(job)
        while (ask := training.ask(inner := self._inner_state(state))) is not None:
            if ask.kind != "alone":
                yield self._ask_group(state, job)
            inner = training.skip(inner)
            state = with_facts(replace(state, step=inner.step), inner=inner.values)
        for split in SPLITS:
            if split in self.splits:
                judged = with_facts(state, waiting=[split])
                yield Ask("gather", self._ask_judgement(judged, job), job.sites)

    def _enter_group(self, state: State, job: Job) -> State:
        training, model = self.inner(job), self.federated(state)
        inner = training.start()
        arrays, values = {**inner.arrays, **model}, dict(inner.values)
        score = self._start_score(state, job)
        if training.evaluation.best and score is not None:
            values |= {"best": {"score": score, "round": 0}, "waited": 0}
            arrays |= {f"best/{n}": a for n, a in model.items()}
        return with_facts(
            State(state.step, {**state.arrays, **prefixed("group/", arrays)}, state.values),
            inner=values,
        )

    def _start_score(self, state: State, job: Job) -> float | None:
        """The federated model on the validation data of this group's sites."""
        told = state.values["personal"]["scores"].get("federated", {})
        return pooled(told, job.sites, self.training.evaluation.metric)

    def _inner_state(self, state: State) -> State:
        arrays = unprefixed("group/", state.arrays)
        return State(state.step, arrays, state.values["personal"]["inner"])

    def _ask_group(self, state: State, job: Job) -> Ask:
        ask = self.inner(job).ask(self._inner_state(state))
        assert ask is not None
        before = self.first_round(state.values["personal"], job) - 1
        whose = f"({job.method})" if job.group < 0 else f"of group {job.group} ({job.method})"
        return within(ask, job.sites, before, whose)

    def _group_answered(self, state: State, job: Job, reply: Reply) -> State:
        training, before = self.inner(job), self._inner_state(state)
        if isinstance(reply, Total):
            reply = replace(reply, sites=[job.sites.index(s) for s in reply.sites])
        inner = training.answer(before, reply)
        personal = state.values["personal"]
        history = personal["history"]
        if inner.values["round"] > before.values["round"]:
            history = [*history, course(job.method, job.group, inner.values["last"])]
        return self._went_on(state, job, inner, history)

    def _went_on(
        self, state: State, job: Job, inner: State, history: list[dict[str, Any]]
    ) -> State:
        """A group's training is at `inner`: go on with it, or with what follows."""
        training, personal = self.inner(job), state.values["personal"]
        kept = {n: a for n, a in state.arrays.items() if not n.startswith("group/")}
        if training.ask(inner) is not None:
            arrays = {**kept, **prefixed("group/", inner.arrays)}
            return with_facts(
                State(inner.step, arrays, state.values), inner=inner.values, history=history
            )
        model = model_of(unprefixed("best/", inner.arrays) or inner.arrays)
        arrays = {**kept, **prefixed("judged/", model)}
        if job.method == "pfa":
            arrays |= prefixed(f"personal/{job.group}/", model)
        chosen = inner.values.get("best", {}).get("round", inner.values["round"])
        rounds = {**personal["kept"].get(job.method, {}), **{str(s): chosen for s in job.sites}}
        kept_rounds = {**personal["kept"], job.method: rounds}
        state = State(inner.step, arrays, state.values)
        return self._leave(state, clear=False, history=history, kept=kept_rounds)
