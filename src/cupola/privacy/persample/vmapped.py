"""The fall-back for any module: `vmap(grad)` over micro-batches, per-sample gradients and all."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from cupola.errors import PlanError
from cupola.privacy.persample.rules import Materialised
from cupola.privacy.persample.tape import Layout, Tape, recording

Loss = Callable[[Tensor, Tensor], Tensor]


def gradients(
    module: nn.Module, layout: Layout, loss: Loss, x: Tensor, y: Tensor
) -> tuple[Materialised, Tensor]:
    """Per-sample gradients by parameter name, and losses (n,), of x and y (n, k, ...).

    A sample is a batch of its own k rows, so no layer can mix samples; random layers draw for each.
    """
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}

    def value(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(module, parameters, (x,)), y).mean()

    with recording(layout, Tape(silent=True)):
        try:
            found, losses = vmap(
                grad_and_value(value), in_dims=(None, 0, 0), randomness="different"
            )(trained, x, y)
        except RuntimeError as error:
            first = (str(error).strip().splitlines() or ["no reason given"])[0]
            raise PlanError(
                f"the model has no per-sample gradients: no rule for all its layers, and it does "
                f"not run under vmap ({first}); register a rule for the layer"
            ) from error
    return Materialised(found), losses
