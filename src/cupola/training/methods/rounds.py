"""A training's methods in its rounds: what they add to a question, and the step they make.

Robust rules must see more than one sum. Either sites' updates are gathered one by one, or sums over
random groups are asked one after the other; what has been told of a round waits in the state
('told/...') until the last of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.base.randomness import permutation
from cupola.errors import PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Contribution, Question, Spec
from cupola.federation.program import Ask, Reply, State
from cupola.training.methods import methods_of, told_of
from cupola.training.methods.method import Method, Round, overrides
from cupola.training.methods.own_parts import HANDED, staying
from cupola.training.methods.personal_limits import require_personal
from cupola.training.participation import expected_sites

if TYPE_CHECKING:
    from cupola.training.loop import Training

NOT_FINITE = "NaN or infinity in its update"
TOLD = "told/"  # before the arrays of groups that have answered in this round


class Methods:
    """All methods of one training. undone: takes the plan's transforms off a total."""

    def __init__(
        self, training: Training, undone: Callable[[Total, Training, State, int], Total]
    ) -> None:
        self.training, self._undone = training, undone
        self.all = methods_of(training.local, training.method)
        self.own = training.method
        self.stay: frozenset[str] = frozenset()
        if self.own is not None:
            if overrides(self.own, "stays"):
                self.stay = staying(self.own, training.problem.build())
            _require_possible(self.own, training, self.stay)

    @property
    def asks(self) -> str:
        return "sum" if self.own is None else self.own.asks

    # Questions

    def start(self, model: Mapping[str, np.ndarray]) -> Arrays:
        """What they keep before the first round, as state arrays."""
        return {
            method.named(name): array
            for method in self.all
            for name, array in method.start(model).items()
        }

    def sent(self, state: State) -> Arrays:
        """What of that goes to sites."""
        prefixes = tuple(f"{method.named()}/" for method in self.all if method.sends)
        return {n: a for n, a in state.arrays.items() if prefixes and n.startswith(prefixes)}

    def travels(self, state: State, first: bool = False) -> Arrays:
        """The model as sites get it. first: in the first round of a training that goes on from
        another one's model, all of it."""
        gone = frozenset() if first and self.training.goes_on else self.stay
        names = (n for n in state.arrays if n.startswith(("model/", "buffer/")) and n not in gone)
        return {name: state.arrays[name] for name in names}

    def answered(self, model: Arrays, arrays: Arrays) -> dict[str, Spec]:
        """What sites answer to a model that is sent. arrays: and all that is sent with it."""
        expects = {name: Spec.of(a) for name, a in model.items() if name not in self.stay}
        for method in self.all:
            expects |= method.expects(arrays)
        return expects

    def options(self, first: bool = False) -> dict[str, Any]:
        """What a question says of the plan's own method."""
        if self.own is None:
            return {}
        handed = bool(self.stay) and self.training.goes_on and not first
        return {"method": told_of(self.own), **({HANDED: True} if handed else {})}

    def judged(self) -> dict[str, Any]:
        """What a question about the model's quality says of it."""
        return self.options() if self.own is not None and self.own.makes_personal else {}

    def asked(self, question: Question, state: State, sites: list[int]) -> Ask:
        """The question, to whom it goes next in this round."""
        if self.asks == "gather":
            each = question.reveals.replace(", summed over sites", ", of each site")
            return Ask("gather", replace(question, reveals=each), sites)
        if self.asks == "groups":
            group = self.groups(sites, question.round)[_answered(state)]
            some = question.reveals.replace("over sites", f"over a group of {len(group)} sites")
            return Ask("sum", replace(question, reveals=some), group)
        return Ask("sum", question, sites)

    def groups(self, sites: Sequence[int], round: int) -> list[list[int]]:
        """Random groups of a round's sites; the same in every round where masked sums may not
        differ by a few sites."""
        training, size = self.training, getattr(self.own, "group", 1)
        same = training.sum.masked and not training.sum.changes
        order = permutation(training.seed, "groups", 0 if same else round, 0, len(sites))
        parts = np.array_split(order, max(1, len(sites) // size))  # the smaller ones come last
        return [sorted(sites[i] for i in part) for part in parts]

    def least_told(self) -> int | None:
        """Sites of the smallest group whose sum is told; None where one sum is told of all."""
        if self.asks != "groups":
            return None
        many = max(1, round(expected_sites(self.training.participation, self.training.sites)))
        return len(self.groups(range(many), 1)[-1])

    def is_last(self, state: State, sites: Sequence[int], round: int) -> bool:
        """Whether this answer is the last of its round."""
        return self.asks != "groups" or _answered(state) + 1 == len(self.groups(sites, round))

    # Answers

    def waiting(self, state: State, total: Total) -> State:
        """The state with this group's sums in it."""
        number = _answered(state)
        arrays = {f"{TOLD}{number}/{name}": array for name, array in total.arrays.items()}
        facts = {"weight": total.weight, "weights": total.weights, "sites": list(total.sites),
                 "failed": {str(site): code for site, code in total.failed.items()}}  # fmt: skip
        return state.next(arrays, told=[*state.values.get("told", []), facts])

    def total(self, state: State, reply: Reply) -> tuple[State, Total]:
        """All of a round's answers as one total, and the state without what was waiting."""
        if self.asks == "sum":
            assert isinstance(reply, Total)
            return state, self._unpacked(reply, state)
        if self.asks == "gather":
            assert isinstance(reply, dict)
            return state, self._aggregated(
                [self._unpacked(_alone(s, c), state) for s, c in reply.items()]
            )
        assert isinstance(reply, Total)
        state = self.waiting(state, reply)
        parts = [self._unpacked(_part(state, i), state) for i in range(_answered(state))]
        arrays = {n: a for n, a in state.arrays.items() if not n.startswith(TOLD)}
        values = {name: value for name, value in state.values.items() if name != "told"}
        return State(state.step - 1, arrays, values), self._aggregated(parts)

    def _unpacked(self, total: Total, state: State) -> Total:
        """A round's total, or the part of a site or group, as if nothing had been transformed."""
        round = self.training.training_round(state.values["round"] + 1)
        return self._undone(total, self.training, state, round)

    def _aggregated(self, parts: Sequence[Total]) -> Total:
        """One total whose mean is what the method makes of the parts' means. Of what comes beside
        updates (buffers, variates) it is their median, but for what is the method's own."""
        assert self.own is not None
        if self.training.local.weighting == "uniform":
            parts = [_counted(part) for part in parts]
        whole, came = Total(), list[tuple[Total, Arrays]]()
        for part in parts:
            whole.failed |= part.failed
            means = _means(part)
            if not all(np.isfinite(array).all() for array in means.values()):
                whole.failed |= dict.fromkeys(part.sites, NOT_FINITE)
            elif part.sites:
                came.append((part, means))
                whole.sites += part.sites
                whole.weight += part.weight
        if not came:
            return whole
        updates = [
            {n.removeprefix("model/"): a for n, a in means.items() if n.startswith("model/")}
            for _, means in came
        ]
        found = self.own.aggregate(updates, [part.weight for part, _ in came])
        for name in came[0][1]:
            each = [(part.weights[name], means[name]) for part, means in came if name in means]
            whole.weights[name] = weight = sum(w for w, _ in each)
            if name.startswith("model/"):
                whole.arrays[name] = found[name.removeprefix("model/")] * weight
            elif name.startswith(self.own.named()):
                whole.arrays[name] = sum((w * mean for w, mean in each), np.zeros(()))
            else:
                whole.arrays[name] = np.median([mean for _, mean in each], 0) * weight
        return whole

    def step(
        self, state: State, update: Arrays, total: Total | None, round: int, share: float
    ) -> Arrays:
        """Model, optimizer and what methods keep, after a step along the mean update. total: that
        it is of, if methods may see it. share: of all sites' weight."""
        kept: Arrays = {}
        total = Total() if total is None else total
        for method in self.all:
            own = {
                n.removeprefix(f"{method.named()}/"): a
                for n, a in state.arrays.items()
                if n.startswith(f"{method.named()}/")
            }
            weight = lambda name: total.weights.get(name, 0.0)  # noqa: E731
            facts = Round(round, own, total.mean, weight, share, self.training.sites)
            update, new = method.combine(facts, update)
            kept |= {method.named(name): array for name, array in new.items()}
        return self.training.move(state, update, round) | kept


def _answered(state: State) -> int:
    """Groups that have answered in this round."""
    return len(state.values.get("told") or [])


def _alone(site: int, answer: Contribution) -> Total:
    total = Total()
    total.add(site, answer)
    return total


def _part(state: State, number: int) -> Total:
    facts, prefix = state.values["told"][number], f"{TOLD}{number}/"
    arrays = {n.removeprefix(prefix): a for n, a in state.arrays.items() if n.startswith(prefix)}
    failed = {int(site): code for site, code in facts["failed"].items()}
    return Total(arrays, dict(facts["weights"]), facts["weight"], list(facts["sites"]), failed)


def _means(part: Total) -> Arrays:
    with np.errstate(all="ignore"):  # of weights and numbers that a site made up
        return {name: np.asarray(part.mean(name)) for name in part.arrays}


def _counted(part: Total) -> Total:
    """A part in which every site counts once, whatever it says that it weighs."""
    many = float(len(part.sites))
    return replace(part, weights=dict.fromkeys(part.weights, many), weight=many)


def _require_possible(own: Method, training: Training, stay: frozenset[str]) -> None:
    """Refuse a method of a plan with what it does not go with, and say the way out."""
    mechanism = training.mechanism
    if training.task != "train":
        raise PlanError(
            f"{own.key} is carried out by task = 'train', and the plan asks '{training.task}'; "
            "leave one of them out"
        )
    if not mechanism.with_methods:
        raise PlanError(f"{own.key}: {mechanism.key} is a method by itself; leave one of them out")
    if mechanism.on and (overrides(own, "answer") or own.asks == "gather"):
        raise PlanError(
            f"{own.key} is told more than a sum of updates, and {mechanism.key} protects nothing "
            "else; leave one of them out"
        )
    if mechanism.by_coordinator and own.asks != "sum":
        raise PlanError(
            f"{own.key}: {mechanism.key} adds noise for a sum, which one site moves by its clip at "
            "most; what is made of groups' sums it may move by more. Take privacy.mechanism = "
            "'distributed', whose noise is in every group's sum, or a plain mean"
        )
    if mechanism.per_example and (overrides(own, "loss", "descend") or not own.post_processing):
        raise PlanError(
            f"{own.key} with {mechanism.key}: gradients are clipped and noised one by one for the "
            "plan's own loss, and the method uses a site's data otherwise; use "
            "privacy.mechanism = 'central', or a method that says post_processing = True"
        )
    if own.asks == "gather" and training.sum.masked:
        raise PlanError(
            f"{own.key} must see every site's own update, which masked sums hide; sums over groups "
            "can be masked: method.name = 'geometric-median'"
        )
    if own.asks == "groups":
        _require_groups(own, training)
    if own.asks != "sum" and training.levels is not None:
        raise PlanError(f"{own.key} with trainable.level: unlike updates cannot be compared")
    if own.makes_personal:
        require_personal(own, training, stay)
    own.check(training)


def _require_groups(own: Method, training: Training) -> None:
    size, choice = getattr(own, "group", 1), training.participation
    many = expected_sites(choice, training.sites)
    if many < 2 * size:
        raise PlanError(
            f"method.group = {size} needs at least {2 * size} sites a round for two groups; there "
            f"are {many:g}"
        )
    if training.sum.masked and size < training.sum.minimum:
        raise PlanError(
            f"method.group = {size} is below sum.minimum = {training.sum.minimum}: no masked sum "
            "of so few sites is told; raise method.group, or lower sum.minimum"
        )
    if training.sum.masked and choice.kind != "all" and not training.sum.changes:
        raise PlanError(
            f"{own.key} with masked sums needs participation.kind = 'all': groups that change from "
            "round to round differ by single sites (or agree to that: sum.changes = true)"
        )
