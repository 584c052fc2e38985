"""MOON (Li, He and Song 2021): model-contrastive federated learning.

Beside the plan's loss, a site pulls the representation z of every input towards that of the model
it received, and away from that of its own last model:

    mu * -log( exp(cos(z, z_received)/T) / (exp(cos(z, z_received)/T) + exp(cos(z, z_last)/T)) )

The representation is what goes into the model's last linear layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.secure.sum_choice import Positive
from cupola.training.methods.method import BatchLoss, Kept, Method, with_weights
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training


class Moon(Method):
    """mu: weight of the contrast. temperature: of the similarities (T)."""

    summary = "representations stay near the received model's, away from the site's last one"
    source = "Li et al. 2021"
    alters = "a contrast of models is added to the loss"

    mu: Positive = 1.0
    temperature: Positive = 0.5

    def check(self, training: Training) -> None:
        if _last_linear(training.problem.build()) is None:
            raise PlanError(f"{self.key} needs a model with a linear layer at its end")

    def loss(self, turn: Turn) -> BatchLoss:
        received = [w.clone() for w in turn.received]
        last = self.kept(turn, "last") if self.has_kept(turn, "last") else received

        def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            output, z = _represented(model, x)
            with torch.no_grad():
                near = with_weights(turn, received, lambda m: _represented(m, x)[1])
                far = with_weights(turn, last, lambda m: _represented(m, x)[1])
            cosines = torch.stack([F.cosine_similarity(z, other) for other in (near, far)], 1)
            target = torch.zeros(len(cosines), dtype=torch.long, device=z.device)
            contrast = F.cross_entropy(cosines / self.temperature, target)
            return turn.space.problem.loss(output, y).mean() + self.mu * contrast

        return loss

    def keep(self, turn: Turn, steps: int) -> Kept:  # noqa: ARG002
        return {"last": turn.params}


def _last_linear(model: nn.Module) -> nn.Linear | None:
    layers: Sequence[nn.Linear] = [m for m in model.modules() if isinstance(m, nn.Linear)]
    return layers[-1] if layers else None


def _represented(model: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the model gives, and what goes into its last linear layer."""
    seen: list[Tensor] = []
    layer = _last_linear(model)
    assert layer is not None
    hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        output = model(x)
    finally:
        hook.remove()
    return output, seen[-1].flatten(1)
