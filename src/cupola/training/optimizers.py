"""Optimizers over lists of tensors: at the site (in place), and at the coordinator (on arrays).

The site's are elementwise, so the same code steps one model or a stack of models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from cupola.training.choices import Local, Server


class LocalOptimizer:
    """SGD with momentum and weight decay, or Adam, as torch.optim defines them."""

    def __init__(self, choice: Local, lr: float) -> None:
        self.choice = choice
        self.lr = lr
        self._steps = 0
        self._first: list[Tensor] = []
        self._second: list[Tensor] = []

    @torch.no_grad()
    def step(self, params: Sequence[Tensor], grads: list[Tensor]) -> None:
        """Move the parameters; may overwrite the gradients."""
        choice = self.choice
        params = list(params)
        self._steps += 1
        if choice.weight_decay:
            torch._foreach_add_(grads, params, alpha=choice.weight_decay)
        if choice.optimizer == "adam":
            self._adam(params, grads)
            return
        if choice.momentum:
            if not self._first:
                self._first = [g.clone() for g in grads]
            else:
                torch._foreach_mul_(self._first, choice.momentum)
                torch._foreach_add_(self._first, grads)
            if choice.nesterov:
                torch._foreach_add_(grads, self._first, alpha=choice.momentum)
            else:
                grads = self._first
        torch._foreach_add_(params, grads, alpha=-self.lr)

    def _adam(self, params: list[Tensor], grads: list[Tensor]) -> None:
        b1, b2 = self.choice.betas
        if not self._first:
            self._first = [torch.zeros_like(g) for g in grads]
            self._second = [torch.zeros_like(g) for g in grads]
        torch._foreach_lerp_(self._first, grads, 1 - b1)
        torch._foreach_mul_(self._second, b2)
        torch._foreach_addcmul_(self._second, grads, grads, 1 - b2)
        size = torch._foreach_sqrt(self._second)
        torch._foreach_div_(size, (1 - b2**self._steps) ** 0.5)
        torch._foreach_add_(size, self.choice.eps)
        torch._foreach_addcdiv_(params, self._first, size, -self.lr / (1 - b1**self._steps))

    def active(self, rows: int) -> None:
        """Keep the state of the first `rows` models of a stack only."""
        self._first = [t[:rows] for t in self._first]
        self._second = [t[:rows] for t in self._second]


def effective_steps(choice: Local, steps: int, lr: float) -> float:
    """FedNova's |a|_1: how far SGD moves, in units of lr, if every gradient of the loss is 1.

    tau for plain SGD; momentum (Nesterov's too) adds to it, a proximal term takes away.
    """
    moved, momentum = 0.0, 0.0
    for _ in range(steps):
        gradient = 1.0 - lr * choice.proximal * moved
        momentum = choice.momentum * momentum + gradient
        moved += gradient + choice.momentum * momentum if choice.nesterov else momentum
    return moved


def server_step(
    choice: Server,
    lr: float,
    model: dict[str, np.ndarray],
    update: dict[str, np.ndarray],
    slots: dict[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """New model and new slots from the mean update (a pseudo-gradient), computed in float64.

    model and update share their names; slots are what the optimizer kept from the last step.
    """
    moved: dict[str, np.ndarray] = {}
    kept: dict[str, np.ndarray] = {}
    for name, value in model.items():
        w, g = value.astype(np.float64), update[name]
        if choice.weight_decay:
            g = g + choice.weight_decay * w
        if choice.optimizer == "sgd":
            if choice.momentum:
                slot = f"momentum/{name}"
                g = kept[slot] = choice.momentum * slots[slot] + g if slot in slots else g
            moved[name] = (w - lr * g).astype(value.dtype)
            continue
        b1, b2 = choice.betas
        first, second = f"first/{name}", f"second/{name}"
        m = (1 - b1) * g + (b1 * slots[first] if first in slots else 0.0)
        v = slots.get(second, np.full_like(w, choice.eps**2))
        square = g * g
        if choice.optimizer == "adagrad":
            v = v + square
        elif choice.optimizer == "yogi":
            v = v - (1 - b2) * square * np.sign(v - square)
        else:
            v = b2 * v + (1 - b2) * square
        kept[first], kept[second] = m, v
        moved[name] = (w - lr * m / (np.sqrt(v) + choice.eps)).astype(value.dtype)
    return moved, kept
