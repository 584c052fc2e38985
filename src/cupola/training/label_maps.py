"""Iterative label maps (ILM-VP, Chen et al. 2023): which of the source's classes stand for the
target's is chosen anew, by `frequent_labels`, as a trained border changes what the source sees.

    before training rounds 1, 1 + every, 1 + 2 every, ...:
        counts of (target class, class that the source takes it for) -> source label -> target label

Counts come from public data at the coordinator, which asks and tells nobody anything; or sites add
up those of their training data, a question of its own. The map is part of the state ('map/...') and
travels with the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cupola.data.dataset import Dataset, FederatedData
from cupola.errors import PlanError
from cupola.federation.federation import Total
from cupola.federation.message import Arrays, Contribution, Declined, Question, Spec, blank
from cupola.federation.program import ALONE, Ask, Reply, State
from cupola.federation.site import SiteContext, task
from cupola.nn.models import building
from cupola.nn.reprogram import Adapted, Counted, frequent_labels, label_counts
from cupola.training.masking_bounds import bounded_counts
from cupola.training.upcycle import is_free
from cupola.training.workspace import Workspace, frozen_part, workspace_of

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.plan import Plan

TASK = "label-counts"
BATCH = 256  # samples per pass


@dataclass(frozen=True)
class LabelMap:
    """When a map is made: before every so many training rounds; by whose examples; how many source
    classes each target class gets."""

    every: int
    by: Counted = "auto"
    per_class: int = 1


def label_map_of(plan: Plan) -> LabelMap | None:
    """What a plan says of it; None where labels are fixed, or trained."""
    if plan.model.name != "pretrained" or "relabel" not in plan.model.options:
        return None
    given = building.checked("pretrained", plan.model.options)
    every = given["relabel"]
    per_class = given.get("per_class", 1)
    return None if every is None else LabelMap(every, given.get("relabel_by", "auto"), per_class)


def may_ask_sites(plan: Plan) -> bool:
    """Whether a plan's sites may be asked for counts."""
    found = label_map_of(plan)
    return found is not None and found.by != "public"


class LabelMaps:
    """The maps of one training; none where its plan wants none."""

    def __init__(self, training: Training) -> None:
        self.training, self.choice = training, training.label_map
        self.public = training.public.get("validation")
        self.by: Counted = "auto"
        if self.choice is not None:
            self.by = self.choice.by
            if self.by == "auto":
                self.by = "public" if self.public else "sites"
            _require_possible(self)

    @property
    def name(self) -> str:
        """Of the map among arrays."""
        found = list(self.training.space.maps)
        if len(found) != 1:
            raise PlanError("label maps are of a model with labels that move (model.relabel)")
        return found[0]

    def is_before(self, round: int) -> bool:
        """Whether a map is made before this training round."""
        return self.choice is not None and (round - 1) % self.choice.every == 0

    def due(self, state: State) -> bool:
        """Whether a map is what comes next."""
        if self.choice is None or state.values["pending"] or state.values["stopped"]:
            return False
        training, done = self.training, state.values["round"]
        if done >= training.rounds or is_free(training.server.upcycle, done + 1):
            return False
        round = training.training_round(done + 1)
        return self.is_before(round) and state.values.get("mapped") != round

    def ask(self, state: State) -> Ask:
        training = self.training
        if self.by == "public":
            return ALONE
        layer = training.space.maps[self.name]
        expects = {"counts": Spec((len(layer.index), layer.of), "int")}
        if training.sum.masked:
            expects = bounded_counts(expects, training.sum, training.problem.kind)
        question = Question(
            TASK,
            training.methods.travels(state) | frozen_part(state.arrays),
            {},
            expects,
            step=state.step,
            round=training.training_round(state.values["round"] + 1),
            reveals="how often the source takes training examples of each class for each of its "
            "own classes, summed over sites",
        )
        return Ask("sum", question, range(training.sites))

    def answer(self, state: State, reply: Reply) -> State:
        """The state with the map made anew; where nobody answered, it stays."""
        old, counts = state.arrays[self.name], None
        if self.by == "public":
            assert self.public is not None
            self.training.space.load(state.arrays)
            counts = source_counts(self.training.space, [self.public])
        elif isinstance(reply, Total):
            counts = reply.arrays.get("counts")
        new = old if counts is None else self._index(counts)
        moved = (np.sort(new, 1) != np.sort(old, 1)).any(1)
        first = "mapped" not in state.values  # what was there before is no map
        return self.skip(state, {self.name: new}, 0 if first else int(moved.sum()))

    def skip(self, state: State, arrays: Arrays | None = None, moved: int = 0) -> State:
        """The state after this step; for a rehearsal, as if the map stayed."""
        round = self.training.training_round(state.values["round"] + 1)
        return state.next(arrays, mapped=round, moved=moved)

    def facts(self) -> dict[str, Any] | None:
        """What `check` says."""
        if self.choice is None:
            return None
        public = len(self.public) if self.by == "public" and self.public is not None else None
        return {"every": self.choice.every, "by": self.by, "public": public}

    def told(self, state: State, round: int) -> dict[str, Any]:
        """For a training round's record: of how many classes the map has changed before it."""
        made = self.choice is not None and state.values.get("mapped") == round
        return {"labels_moved": state.values["moved"]} if made else {}

    def remake(self, space: Workspace, sites: FederatedData) -> None:
        """Where all data are in one place: the map of the model as it is."""
        data: Iterable[Dataset] = (sites.site(i).train for i in range(len(sites)))
        if self.by == "public":
            assert self.public is not None
            data = [self.public]
        index = self._index(source_counts(space, data))
        space.maps[self.name].index.copy_(torch.from_numpy(index))

    def _index(self, counts: np.ndarray) -> np.ndarray:
        assert self.choice is not None
        return np.array(frequent_labels(counts, self.choice.per_class), np.int64)


def _require_possible(maps: LabelMaps) -> None:
    training, privacy = maps.training, maps.training.mechanism
    public = "public data (data.partition.public_validation)"
    if maps.by == "public" and not maps.public:
        raise PlanError(f"model.relabel_by = 'public' needs {public}; or let 'sites' add up counts")
    if maps.by == "sites" and privacy.on:
        raise PlanError(
            "model.relabel asks sites for counts of their training examples, and "
            f"{privacy.key} protects nothing but updates; make the map from {public}, give "
            "model.labels, or train the map (model.adapt = 'reprogram')"
        )
    own = training.methods.own
    if own is not None and own.makes_personal:
        raise PlanError(
            f"model.relabel makes one map for all sites, and {own.key} a model for each"
        )


# At a site


def source_counts(space: Workspace, data: Iterable[Dataset]) -> np.ndarray:
    """(target classes, source classes): how often the source, behind the border as it is now, takes
    examples of the one for the other."""
    ((_, layer),) = space.maps.items()
    module, classes = space.module, len(layer.index)
    assert isinstance(module, Adapted)
    counts = np.zeros((classes, layer.of), np.int64)
    module.eval()
    try:
        with torch.inference_mode():
            for part in data:
                rows = [slice(start, start + BATCH) for start in range(0, len(part), BATCH)]
                space.soon(part, rows)
                for some in rows:
                    x, y = space.batch(part, some, whole=True)
                    counts += label_counts(y, module.features(x).argmax(1), classes, layer.of)
    finally:
        module.train()
    return counts


@task(TASK)
def count_labels(site: SiteContext, question: Question) -> Contribution:
    """Counts of a site's training data at the received model."""
    space = workspace_of(site)
    if not space.maps:
        raise Declined("question is not well formed")
    if not len(site.data.train):
        raise Declined("no samples")
    space.load(question.arrays)
    return Contribution({"counts": source_counts(space, [site.data.train])})


@count_labels.rehearses
def _rehearsed(sites: Sequence[SiteContext], question: Question) -> list[Arrays | str]:
    counts: Arrays = {name: blank(spec) for name, spec in question.expects.items()}
    return [counts if len(site.data.train) else "no samples" for site in sites]
