"""FedNTD (Lee, Jeong, Shin, Bae and Yun 2022): not-true distillation.

A site keeps what the received model knows of the classes that an example is not: beside the plan's
loss, beta T^2 KL(received, own) over the softened scores of all classes but the true one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.secure.sum_choice import Positive
from cupola.training.methods.method import BatchLoss, Method, with_weights
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training


class FedNtd(Method):
    """beta: weight of the distillation. temperature: of the softened scores."""

    summary = "distils what the received model knows of the classes that an example is not"
    source = "Lee et al. 2022"
    alters = "a distillation is added to the loss"

    beta: Positive = 1.0
    temperature: Positive = 1.0

    def check(self, training: Training) -> None:
        problem = training.problem
        if problem.kind != "classification" or (problem.classes or 0) < 3:
            raise PlanError(f"{self.key} needs at least three classes to tell apart")

    def loss(self, turn: Turn) -> BatchLoss:
        received, heat = [w.clone() for w in turn.received], self.temperature

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            output = model(x)
            with torch.no_grad():
                said = with_weights(turn, received, lambda m: m(x))
            others = torch.ones_like(output, dtype=torch.bool).scatter_(1, y[:, None], False)
            shape = (len(output), output.shape[1] - 1)
            own = (output[others].view(shape) / heat).log_softmax(1)
            theirs = (said[others].view(shape) / heat).softmax(1)
            soft = F.kl_div(own, theirs, reduction="batchmean") * heat**2
            return turn.space.problem.loss(output, y).mean() + self.beta * soft

        return loss
