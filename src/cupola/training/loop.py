"""The training loop as a step machine: ask the sites, step the server, judge the model.

Everything that varies between published methods is a choice (see `choices`); this file is the same
for all of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupola.base.formatting import LOWER_IS_BETTER
from cupola.data.dataset import Dataset
from cupola.errors import FederationError, PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Question, Spec
from cupola.federation.program import ALONE, Ask, Reply, State
from cupola.training.choices import Evaluation, Local, Participation, Privacy, Server, Sum
from cupola.training.frozen import SEED, levels, require_trainable
from cupola.training.label_maps import LabelMap, LabelMaps
from cupola.training.masking_bounds import bounded_counts
from cupola.training.mechanisms import mechanism_of
from cupola.training.mechanisms.coordinator import parameter_names
from cupola.training.methods.method import Method
from cupola.training.methods.rounds import Methods
from cupola.training.metrics import (
    count,
    expected,
    metrics,
    require_judged,
    with_matrix,
    without_matrices,
)
from cupola.training.optimizers import server_step
from cupola.training.participation import draw, require_sites
from cupola.training.privacy_promise import require_possible
from cupola.training.transforms import Transform, pipeline
from cupola.training.upcycle import (
    extrapolated,
    factor,
    follow_loss,
    is_free,
    remembered,
    require_upcyclable,
    training_rounds,
)
from cupola.training.workspace import MODEL, Problem, Workspace, frozen_part


@dataclass
class Training:
    """A program: `rounds` rounds over `sites` sites.

    With server.upcycle every second round asks nobody (see `upcycle`). Whatever is drawn, noised,
    scheduled or charged goes by the number of a *training* round, which is what questions call
    their round; records and evaluation go by all rounds.
    public: data sets at the coordinator, 'test' and 'validation', where they exist. site_splits:
    what sites hold out ('test', 'validation'). task: what sites run in a round, 'train' or the
    user's own with the same arrays in and out. members: the numbers of these sites in the whole
    federation, where they are a part of it; federation: how many that has. goes_on: whether it
    starts from the model of another training.
    State arrays: 'model/', 'buffer/', 'server/' (optimizer), 'variate/' (SCAFFOLD), 'ftrl/',
    'told/' (groups' sums of a round under way), 'method/' (what a method keeps),
    'best/', 'before/' (the model before a training round that a free one follows), 'frozen/' (the
    seed and the checksum of what is not trained, see `frozen`), 'map/' (see `label_maps`).
    State values: 'round' (completed rounds), 'record' (of the round under way), 'pending'
    (questions left in it), 'last' (record of the last completed round), 'best', 'stopped', 'clip'
    (where it follows a quantile), 'factor' and 'loss' (where upcycling is adaptive), 'answered'
    (whether anybody did in the last training round, where free ones follow), 'mapped' (the
    training round that the map of labels was made for) and 'moved' (how many changed then).
    privacy: with its noise found (see `privacy_promise.resolve`); mechanism: what it names. sum:
    masked sums need bounds, which go into the questions. method: the plan's own, if any.
    transforms: of updates on their way. label_map: when labels are mapped anew, if they are.
    """

    problem: Problem
    sites: int
    rounds: int
    seed: int = 0
    task: str = "train"
    local: Local = field(default_factory=Local)
    server: Server = field(default_factory=Server)
    participation: Participation = field(default_factory=Participation)
    evaluation: Evaluation = field(default_factory=Evaluation)
    privacy: Privacy = field(default_factory=Privacy)
    sum: Sum = field(default_factory=Sum)
    method: Method | None = None
    transforms: tuple[Transform, ...] = ()
    public: Mapping[str, Dataset] = field(default_factory=dict)
    site_splits: frozenset[str] = frozenset()
    members: tuple[int, ...] | None = None
    federation: int | None = None
    goes_on: bool = False
    label_map: LabelMap | None = None

    def __post_init__(self) -> None:
        self._space: Workspace | None = None
        self.levels = levels(self)
        self.mechanism = mechanism_of(self.privacy)
        self.methods = Methods(self, pipeline.unpacked_total)
        self.maps = LabelMaps(self)
        require_possible(self)
        require_trainable(self)
        require_upcyclable(self)
        pipeline.require_packable(self)
        self.coordinator = self.mechanism.coordinator.of(self)
        require_judged(self)
        require_sites(self.participation, self.sites, self.training_rounds, self.sum)

    def training_round(self, round: int) -> int:
        """The number of this training round among the training rounds; of a free round, that of
        the one before it. So also how many of the first `round` rounds ask sites."""
        return training_rounds(self.server.upcycle, round)

    @property
    def training_rounds(self) -> int:
        """Rounds in which sites are asked to train."""
        return self.training_round(self.rounds)

    @property
    def space(self) -> Workspace:
        """The coordinator's own workspace, for public evaluation."""
        if self._space is None:
            self._space = Workspace(self.problem)
        return self._space

    def start(self) -> State:
        arrays = Workspace(self.problem).arrays()  # anew: judging loads other weights into `space`
        model = {name: arrays[f"model/{name}"] for name in parameter_names(arrays)}
        arrays |= self.methods.start(model)
        return State(0, arrays, {"round": 0, "record": None, "pending": [], "stopped": None})

    def ask(self, state: State) -> Ask | None:
        pending = state.values["pending"]
        if pending:
            return self._ask_evaluation(state, *pending[0])
        if self.maps.due(state):
            return self.maps.ask(state)
        done = state.values["round"]
        if done >= self.rounds or state.values["stopped"]:
            return None
        if is_free(self.server.upcycle, done + 1):
            return ALONE
        return self._ask_training(state, self.training_round(done + 1))

    def answer(self, state: State, reply: Reply) -> State:
        if state.values["pending"]:
            return self._judged(state, reply)
        if self.maps.due(state):
            return self.maps.answer(state, reply)
        if is_free(self.server.upcycle, state.values["round"] + 1):
            return self._upcycled(state)
        round = self.training_round(state.values["round"] + 1)
        if not self.methods.is_last(state, self._drawn(round), round):
            assert isinstance(reply, Total)
            return self.methods.waiting(state, reply)
        return self._trained(*self.methods.total(state, reply))

    def skip(self, state: State, answered: bool = True) -> State:
        """The state after the next step as if its answer changed nothing and validation never
        stopped the training: a rehearsal needs the questions only. answered: by anybody."""
        if self.maps.due(state):
            return self.maps.skip(state)
        done, pending = state.values["round"], state.values["pending"][1:]
        if not state.values["pending"]:
            number = self.training_round(done + 1)
            if not self.methods.is_last(state, self._drawn(number), number):
                return state.next(told=[*state.values.get("told", []), answered])
            answered = answered or any(state.values.get("told", []))
            state = State(state.step, state.arrays, {**state.values, "told": []})
            if is_free(self.server.upcycle, done + 1):
                answered = state.values["answered"]
            pending = [ask for ask in self._due(done + 1, answered) if ask[0] != "public"]
            state = State(state.step, state.arrays, {**state.values, "answered": answered})
        return state.next(pending=pending, round=done + (not pending))

    # Training

    def first_ask(self) -> Ask:
        """The first question to train."""
        state = self.start()
        state = self.maps.skip(state) if self.maps.due(state) else state
        ask = self.ask(state)
        assert ask is not None
        return ask

    def _ask_training(self, state: State, round: int) -> Ask:
        """round: number of the training round."""
        model = self.methods.travels(state, first=round == 1)
        arrays = model | self.methods.sent(state)
        expects = self.methods.answered(model, arrays)
        arrays |= frozen_part(state.arrays)
        choice = self.participation
        options: dict[str, Any] = {
            "local": self.local.model_dump(exclude_defaults=True, mode="json"),
            "lr": self.local.lr * self.local.schedule.factor(round, self.training_rounds),
        }
        options |= self.methods.options(first=round == 1)
        if choice.stragglers or choice.dropouts:
            options["participation"] = choice.model_dump(exclude_defaults=True, mode="json")
        clip = self.coordinator.clip(state)
        if self.privacy.on:
            privacy = self.privacy.model_copy(update={"clip": clip})
            options["privacy"] = privacy.model_dump(
                by_alias=True,  # `noise`, as every version has called it in a question
                exclude_defaults=True,
                exclude={"budget", "delta", "accountant", "published"},
                mode="json",
            )
            options |= self.mechanism.options(self, round)
            expects |= self.mechanism.expects()
        what = "accumulated gradients" if self.local.send == "gradients" else "model change"
        if self.server.upcycle is not None and self.server.upcycle.adaptive:
            options["report_loss"] = True
            expects["loss"] = Spec(())
            what = f"mean loss at the received model; {what}"
        samples = "; samples used" if self.local.weighting == "samples" else ""
        question = Question(
            self.task,
            arrays,
            options,
            expects,
            step=state.step,
            round=round,
            partial=self.levels is not None,
            reveals=f"{what} after local training, summed over sites{samples}",
            protection=self.mechanism.describe(clip),
        )
        if self.sum.masked:
            question = self.mechanism.bounds(question, self, clip)
        question = pipeline.packed_question(question, self, state, round)
        return self.methods.asked(question, state, self._drawn(round))

    def _drawn(self, round: int) -> list[int]:
        """The sites of a training round."""
        return draw(self.participation, self.sites, self.seed, round)

    def _trained(self, state: State, total: Total) -> State:
        done, upcycle = state.values["round"] + 1, self.server.upcycle
        round = self.training_round(done)
        record: dict[str, Any] = {
            "round": done,
            "sites": len(total.sites),
            "failed": dict(Counter(total.failed.values())),
            "samples": total.weight if self.local.weighting == "samples" else None,
            **self.maps.told(state, round),
        }
        arrays, values = self.coordinator.step(self, state, total, round)
        arrays |= pipeline.next_ranges(total, self, state, round)
        record |= values
        if upcycle is not None and upcycle.adaptive and total.weight > 0:
            record["received_loss"] = loss = float(total.mean("loss"))
            values |= follow_loss(upcycle, self.local.proximal, loss, state.values)
        if upcycle is not None:
            arrays |= remembered(state.arrays)
            values["answered"] = bool(total.sites)
        state = state.next(arrays, record=record, **values)
        return self._complete(state, done, bool(total.sites))

    def _upcycled(self, state: State) -> State:
        """A round by the coordinator alone."""
        done, upcycle = state.values["round"] + 1, self.server.upcycle
        assert upcycle is not None
        number, adapted = self.training_round(done), state.values.get("factor")
        c = factor(upcycle, self.local.proximal, number, adapted)
        record = {"round": done, "sites": 0, "failed": {}, "samples": None, "upcycled": c}
        state = state.next(extrapolated(state.arrays, c), record=record)
        kept = {n: a for n, a in state.arrays.items() if not n.startswith("before/")}
        answered = bool(state.values.get("answered", True))
        return self._complete(State(state.step, kept, state.values), done, answered)

    def _complete(self, state: State, round: int, answered: bool = True) -> State:
        """The model of this round stands: judge it if it is time."""
        self._require_finite(state.arrays, round)
        return self._next_judgement(state, self._due(round, answered))

    def move(self, state: State, update: Arrays, round: int) -> Arrays:
        """Model and optimizer after a step along the mean update."""
        model = {n: state.arrays[f"model/{n}"] for n in update}
        slots = {
            n.removeprefix("server/"): a for n, a in state.arrays.items() if n[:7] == "server/"
        }
        with np.errstate(over="ignore", invalid="ignore"):  # found out later, in words
            moved, kept = server_step(self.server, self.server_lr(round), model, update, slots)
        return {
            **{f"model/{n}": a for n, a in moved.items()},
            **{f"server/{n}": a for n, a in kept.items()},
        }

    @staticmethod
    def _require_finite(arrays: Arrays, round: int) -> None:
        if not all(np.isfinite(a).all() for n, a in arrays.items() if n.startswith("model/")):
            raise FederationError(
                f"round {round}: the model is no longer finite (training diverged); lower local.lr "
                "or server.lr, then resume or run again"
            )

    def mean_step(self, state: State, total: Total, round: int) -> Arrays:
        """Model, buffers and variates after a step along the mean over the sites that came."""
        # Where sites train different parts, a tensor may have no mean in a round: it stays.
        names = [n for n in parameter_names(state.arrays) if total.weights.get(f"model/{n}")]
        update = {n: total.mean(f"model/{n}") for n in names}
        share = len(total.sites) / self.sites
        arrays = self.methods.step(state, update, total, round, share)
        for name, array in state.arrays.items():
            if name.startswith("buffer/") and name not in self.methods.stay:
                arrays[name] = total.mean(name).astype(array.dtype)
        return arrays

    def server_lr(self, round: int) -> float:
        """The server's rate in a training round; with gradients it is the sites' own, schedule
        included."""
        rate, schedule = self.server.lr, self.server.schedule
        if self.local.send == "gradients":
            rate = self.local.lr if rate is None else rate
            schedule = schedule or self.local.schedule
        return (1.0 if rate is None else rate) * (
            schedule.factor(round, self.training_rounds) if schedule else 1.0
        )

    # Evaluation

    @property
    def validation(self) -> str | None:
        """Where validation data are: 'public' before 'sites'."""
        if len(self.public.get("validation", ())):
            return "public"
        return "sites" if "validation" in self.site_splits else None

    def _due(self, round: int, answered: bool) -> list[list[str]]:
        """What to ask after this round. Where nobody answered, a part of a federation has the model
        that all sites have judged, and masked totals of all and of some would tell of the others.
        """
        if not answered and self.members is not None and self.sum.masked:
            return []
        due = round % self.evaluation.every == 0 or round == self.rounds
        return self._judgements() if due else []

    def _judgements(self) -> list[list[str]]:
        """What to ask sites in an evaluated round, as (kind, split)."""
        judge = self.evaluation
        asks = [["sum", "test"]] if judge.on in ("sites", "both") else []
        if self.validation == "sites":
            asks.append(["sum", "validation"])
        if judge.train:
            asks.append(["sum", "train"])
        if judge.per_site:
            asks.append(["gather", "test"])
        return [["public", ""], *asks]

    def _next_judgement(self, state: State, pending: list[list[str]]) -> State:
        """Do what the coordinator can do alone; leave the rest pending, or close the round."""
        record = dict(state.values["record"])
        if pending and pending[0] == ["public", ""]:
            pending = pending[1:]
            for split, data in self.public.items():
                if len(data) and not (split == "test" and self.evaluation.on == "sites"):
                    record[split] = self.judge(state.arrays, data, matrix=True)
        state = State(state.step, state.arrays, {**state.values, "record": record})
        if pending:
            return State(state.step, state.arrays, {**state.values, "pending": pending})
        return self._close(state)

    def judge(
        self, arrays: Mapping[str, np.ndarray], *data: Dataset, matrix: bool = False
    ) -> dict[str, Any]:
        """Metrics of a model on data that are here; with the confusion matrix if asked."""
        self.space.load(arrays)
        sums = count(self.space, data, self._options("test"))
        return with_matrix(sums) if matrix else metrics(sums)

    def _options(self, split: str) -> dict[str, Any]:
        judge = self.evaluation
        return {"split": split, "auroc": judge.auroc, "batch_size": judge.batch_size}

    def _ask_evaluation(self, state: State, kind: str, split: str) -> Ask:
        options = self._options(split)
        expects = expected(self.problem, options)
        options |= self.methods.judged()
        if self.sum.masked:
            expects = bounded_counts(expects, self.sum, self.problem.kind)
        question = Question(
            "evaluate",
            self.methods.travels(state) | frozen_part(state.arrays),
            options,
            expects,
            step=state.step,
            round=self.training_round(state.values["round"] + 1),
            reveals=f"counts of the model on {split} data"
            + (", each site's own" if kind == "gather" else ", summed over sites"),
        )
        return Ask("gather" if kind == "gather" else "sum", question, range(self.sites))

    def _judged(self, state: State, reply: Reply) -> State:
        (_, split), *pending = state.values["pending"]
        record = dict(state.values["record"])
        if isinstance(reply, Total):
            record["sites_" + split] = with_matrix(reply.arrays) if reply.arrays else {}
        elif reply is not None:
            record["per_site"] = {str(s): metrics(c.arrays) for s, c in reply.items()}
        return self._next_judgement(state.next(record=record, pending=pending), pending)

    def _close(self, state: State) -> State:
        """End the round: remember the best model, decide about stopping."""
        record = state.values["record"]
        values = {**state.values, "round": record["round"], "record": None, "pending": []}
        arrays = state.arrays
        judge = self.evaluation
        where = "validation" if self.validation == "public" else "sites_validation"
        score = record.get(where, {}).get(judge.metric)
        if score is not None and (judge.best or judge.patience):
            if judge.metric in LOWER_IS_BETTER:
                score = -score
            best = values.get("best")
            if math.isfinite(score) and (best is None or score > best["score"]):
                values |= {"best": {"score": score, "round": record["round"]}, "waited": 0}
                if judge.best:
                    models = {n: a for n, a in arrays.items() if n.startswith(MODEL)}
                    arrays = {**arrays, **{f"best/{n}": a for n, a in models.items()}}
            else:
                values["waited"] = values.get("waited", 0) + 1
                if judge.patience and values["waited"] >= judge.patience:
                    values["stopped"] = (
                        f"{judge.metric} on validation data did not improve for "
                        f"{judge.patience} evaluations"
                    )
        elif (judge.best or judge.patience) and record.get(where):  # too few answered: no total
            raise PlanError(
                f"evaluation.metric = '{judge.metric}' is not measured here; "
                f"measured: {', '.join(sorted(record[where]))}"
            )
        if record["round"] < self.rounds and not values["stopped"]:
            record = without_matrices(record)
        values["last"] = record
        return State(state.step, arrays, values)

    def model(self, state: State) -> Arrays:
        """The resulting weights: the best on validation data if kept, else the last; and those that
        were never trained."""
        frozen = self.space.frozen.arrays(int(state.arrays.get(SEED, 0)))
        best = {n.removeprefix("best/"): a for n, a in state.arrays.items() if n[:5] == "best/"}
        source = best or state.arrays
        trained = {n.split("/", 1)[1]: a for n, a in source.items() if n.startswith(MODEL)}
        return {**frozen, **trained}
