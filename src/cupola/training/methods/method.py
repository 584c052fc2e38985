"""Method (in the field: strategy, algorithm): what a site optimises and sends, and what the
coordinator makes of the sum.

A method is one object. Its fields are its options: keys of [method] in a plan, checked with it and
swept like any other key. The defaults are FedAvg: sites descend on the plan's loss, and the model
moves by the mean of their changes. Override what differs:

    check               what is refused, before anything runs
    loss, correction    at a site, what is optimised: another loss; what changes every gradient
    descend             at a site, its whole local work, where that is not the loop's
    update, answer      at a site, what is sent: the update, and arrays beside it
    keep                at a site, what is kept there until its next turn
    stays               parts of the model that never leave their site
    personal            at a site, the model of its own by which it is judged
    start, expects      at the coordinator, what it keeps of its own; what sites answer beside
    aggregate           there, updates of single sites, or of groups, to one (robust rules)
    combine             there, the mean update to the one that the model takes

Three plain choices of [local] are methods as well (FedProx, SCAFFOLD, FedNova) and go with one of
your own.

>>> from cupola.training.methods import Method
>>> class Cautious(Method):
...     share: float = 0.5
...     def combine(self, round, update):
...         return {name: self.share * change for name, change in update.items()}, {}
>>> Cautious(share=0.1).combine(None, {"weight": 2.0})
({'weight': 0.2}, {})
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.federation.message import Arrays, Spec
from cupola.secure.sum_choice import Choice
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.methods.local_steps import LocalSteps

Correction = Callable[[list[Tensor]], object]
BatchLoss = Callable[[nn.Module, Tensor, Tensor], Tensor]
Kept = dict[str, Sequence[Tensor]]

OWN = "own"  # before what a site keeps of a model of its own


@dataclass(frozen=True)
class Round:
    """A training round as a method at the coordinator sees it.

    number: among training rounds, from 1. kept: what the method kept, by name and parameter
    ('h/0.weight'). mean: over the sites that came, of an array that they answered beside the
    update; weight: how many they were, as they weigh in that mean. share: of all sites' weight, how
    much is in the update (under site-level privacy: as expected). sites: in the federation.
    """

    number: int
    kept: Mapping[str, np.ndarray]
    mean: Callable[[str], np.ndarray]
    weight: Callable[[str], float]
    share: float
    sites: int


class Method(Choice):
    """A method with its options; by itself FedAvg.

    summary, source: in a line; the paper. asks: whether updates are added up over sites ('sum'),
    gathered one by one ('gather'), or added up within random groups of `group` sites ('groups');
    `aggregate` sees those of sites or groups. sends: whether what the coordinator keeps goes to
    sites with the model. post_processing: whether a site's data enter through the loop's gradients
    alone, so that a mechanism which noises those protects this method's answers as well. stackable:
    whether the forms that train many sites in one computation know it. alters: why the result
    differs from centralised training. prefix: of its arrays' names in messages and checkpoints, if
    not 'method/' and its name.
    """

    summary: ClassVar[str] = ""
    source: ClassVar[str] = ""
    asks: ClassVar[Literal["sum", "gather", "groups"]] = "sum"
    sends: ClassVar[bool] = False
    post_processing: ClassVar[bool] = False
    stackable: ClassVar[bool] = False
    alters: ClassVar[str] = "it is a method of its own"
    prefix: ClassVar[str] = ""

    @property
    def key(self) -> str:
        """How a plan chooses it, for messages."""
        return f"method.name = '{method_name(type(self))}'"

    @property
    def makes_personal(self) -> bool:
        """Whether sites have models of their own."""
        return overrides(self, "stays", "descend", "personal")

    def check(self, training: Training) -> None:
        """Refuse trainings that this method cannot do, with a PlanError."""

    def stays(self, model: nn.Module) -> frozenset[str]:  # noqa: ARG002
        """Names of parameters and buffers that never leave a site, where each has its own. At first
        they are as in the initial model."""
        return frozenset()

    # At a site

    def loss(self, turn: Turn) -> BatchLoss | None:  # noqa: ARG002
        """The loss of a batch, one number, from (model, inputs, targets); None: the plan's."""
        return None

    def correction(self, turn: Turn) -> Correction | None:  # noqa: ARG002
        """What is called with the gradients of every step, and changes them in place."""
        return None

    def descend(self, turn: Turn, steps: LocalSteps) -> Arrays:  # noqa: ARG002
        """A site's whole local work, which moves `turn.params` to what the update is made of. Gives
        the site's own model or a part of it ('model/0.weight', 'buffer/...'), which stays there."""
        steps.take()
        return {}

    def personal(self, turn: Turn) -> Arrays:
        """Of the model by which a site is judged, what is not the federated one's."""
        return self._kept_arrays(turn, f"{OWN}/")

    def update(self, turn: Turn, update: list[Tensor], steps: int) -> list[Tensor]:  # noqa: ARG002
        """What is sent in place of start minus end, after so many steps."""
        return update

    def answer(self, turn: Turn, steps: int) -> Arrays:  # noqa: ARG002
        """Arrays that are sent beside the update, as `expects` has them."""
        return {}

    def keep(self, turn: Turn, steps: int) -> Kept:  # noqa: ARG002
        """What stays at the site until its next turn: by name, a tensor for every parameter."""
        return {}

    def kept(self, turn: Turn, name: str = "") -> list[Tensor]:
        """What this site kept after its last turn, by parameter; zeros before the first."""
        return self._tensors(turn, turn.site.recall(turn.question), name)

    def has_kept(self, turn: Turn, name: str = "") -> bool:
        """Whether this site kept something under this name."""
        return any(n.startswith(self.named(name, "")) for n in turn.site.recall(turn.question))

    def received(self, turn: Turn, name: str = "") -> list[Tensor]:
        """What the coordinator keeps, as it came with the question (see `sends`)."""
        return self._tensors(turn, turn.question.arrays, name)

    def _kept_arrays(self, turn: Turn, name: str) -> Arrays:
        start = f"{self.named()}/{name}"
        kept = turn.site.recall(turn.question)
        return {n.removeprefix(start): a for n, a in kept.items() if n.startswith(start)}

    def _tensors(self, turn: Turn, arrays: Mapping[str, np.ndarray], name: str) -> list[Tensor]:
        space, names = turn.space, (self.named(name, own) for own in turn.space.names)
        return [
            torch.from_numpy(arrays[key]).to(space.device)
            if key in arrays
            else torch.zeros_like(parameter)
            for key, parameter in zip(names, space.params)
        ]

    def named(self, *parts: str) -> str:
        """The name of an array of this method in messages and checkpoints."""
        start = self.prefix or f"method/{method_name(type(self))}"
        return "/".join(part for part in (start, *parts) if part)

    # At the coordinator

    def start(self, model: Mapping[str, np.ndarray]) -> Arrays:  # noqa: ARG002
        """What it keeps before the first round, by name. model: the initial parameters."""
        return {}

    def expects(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:  # noqa: ARG002
        """What sites answer beside the update. arrays: those of the question."""
        return {}

    def aggregate(self, updates: Sequence[Arrays], weights: Sequence[float]) -> Arrays:
        """One update of those of sites, or of groups; by default their weighted mean."""
        whole = sum(weights)
        return {
            name: np.sum([w * update[name] for w, update in zip(weights, updates)], 0) / whole
            for name in updates[0]
        }

    def combine(self, round: Round, update: Arrays) -> tuple[Arrays, Arrays]:  # noqa: ARG002
        """The update that the model takes, from the mean of the sites' ones, by parameter; and what
        the coordinator keeps from now on, by name."""
        return update, {}


def overrides(method: Method, *hooks: str) -> bool:
    """Whether a method has one of these hooks of its own."""
    return any(getattr(type(method), hook) is not getattr(Method, hook) for hook in hooks)


def method_name(kind: type[Method]) -> str:
    """A method's name in plans: of one of ours, or a user's 'module:Class'."""
    from cupola.training.methods import METHODS

    ours = next((name for name, known in METHODS.items() if known is kind), None)
    return ours or f"{kind.__module__}:{kind.__qualname__}"


def flat(update: Arrays) -> np.ndarray:
    """An update as one vector."""
    return np.concatenate([np.asarray(array, np.float64).reshape(-1) for array in update.values()])


def with_weights(
    turn: Turn, weights: Sequence[Tensor], compute: Callable[[nn.Module], Tensor]
) -> Tensor:
    """What is computed on the turn's model with these weights in place of its own, as it is in
    evaluation."""
    module = turn.space.module
    own = {f"model.{name}": weight for name, weight in zip(turn.space.names, weights)}
    module.eval()
    try:
        return torch.func.functional_call(_Computed(module, compute), own, ())
    finally:
        module.train()


class _Computed(nn.Module):
    """A computation on a model as a module's call, so that the model's weights can be replaced."""

    def __init__(self, model: nn.Module, compute: Callable[[nn.Module], Tensor]) -> None:
        super().__init__()
        self.model, self.compute = model, compute

    def forward(self) -> Tensor:
        return self.compute(self.model)


def require_plain_mean(method: Method, training: Training) -> None:
    """Refuse what does not go with a plain mean of changes over sites."""
    local = training.local
    if local.send != "change":
        raise PlanError(f"{method.key} works on the change of the model: local.send = 'change'")
    if local.weighting != "uniform":
        raise PlanError(f"{method.key} is a plain mean over sites: local.weighting = 'uniform'")
