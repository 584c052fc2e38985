"""Parts of the model that stay at their site: FedPer, FedRep and FedBN.

FedPer (Arivazhagan, Aggarwal, Singh and Choudhary 2019): the last layers stay, all are trained
    together.
FedRep (Collins, Hassani, Mokhtari and Shakkottai 2021): the last layers stay; of a round's batches
    the first train them alone, the others what is shared.
FedBN (Li, Jiang, Zhang, Kamp and Dou 2021): normalisation layers stay, statistics included.

What stays is neither sent nor asked for, so that its bytes are saved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from torch import nn

from cupola.errors import PlanError
from cupola.federation.message import Arrays
from cupola.training.frozen import is_norm
from cupola.training.methods.method import Method
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.methods.local_steps import LocalSteps


class FedPer(Method):
    """layers: how many of the last layers stay."""

    summary = "the last layers stay at their site"
    source = "Arivazhagan et al. 2019"
    alters = "the last layers stay at their site"

    layers: Annotated[int, Field(ge=1)] = 1

    def stays(self, model: nn.Module) -> frozenset[str]:
        return frozenset(n for layer in _layers(model)[-self.layers :] for n in layer)

    def check(self, training: Training) -> None:
        many = len(_layers(training.problem.build()))
        if many <= self.layers:
            raise PlanError(
                f"method.layers = {self.layers} of {many} leaves nothing to train together; take "
                "fewer, or a deeper model"
            )


class FedRep(FedPer):
    """layers: how many of the last layers stay. share: of a round's batches, how many train these
    alone; the others train what is shared."""

    summary = "the last layers stay at their site, and are trained before what is shared"
    source = "Collins et al. 2021"
    alters = "the last layers stay at their site, and are trained apart"

    share: Annotated[float, Field(gt=0, lt=1)] = 0.5

    def descend(self, turn: Turn, steps: LocalSteps) -> Arrays:
        own = self.stays(turn.space.module)
        many = min(len(steps.batches), max(1, round(self.share * len(steps.batches))))
        steps.take(steps.batches[:many], own)
        steps.take(steps.batches[many:], frozenset(turn.space.names) - own)
        return {}


class FedBN(Method):
    """Parameters and statistics of normalisation layers stay."""

    summary = "normalisation layers stay at their site, statistics included"
    source = "Li et al. 2021, FedBN"
    alters = "normalisation layers stay at their site"

    def stays(self, model: nn.Module) -> frozenset[str]:
        named = (*model.named_parameters(), *model.named_buffers())
        return frozenset(name for name, _ in named if is_norm(model, name))

    def check(self, training: Training) -> None:
        if not self.stays(training.problem.build()):
            raise PlanError(f"{self.key} needs a model with normalisation layers")


def _layers(model: nn.Module) -> list[list[str]]:
    """Names of trained parameters and of buffers, by the layer that has them, in the order in which
    layers were made; layers without parameters go with none."""
    found = []
    for prefix, layer in model.named_modules():
        start = f"{prefix}." if prefix else ""
        own = [f"{start}{n}" for n, p in layer.named_parameters(recurse=False) if p.requires_grad]
        if own:
            found.append([*own, *(f"{start}{n}" for n, _ in layer.named_buffers(recurse=False))])
    return found
