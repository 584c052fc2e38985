"""Ditto (Li, Hu, Beirami and Smith 2021): a personal model beside the federated one.

The federated model w is trained as it would be without (FedAvg); beside it site k trains a model of
its own over the same batches, from where it left it,

    v_k = v_k - lr (grad F_k(v_k) + lambda (v_k - w_t))

which is all that personalises: nothing of v_k leaves the site.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from cupola.errors import PlanError
from cupola.federation.message import Arrays
from cupola.training.choices import NonNegative
from cupola.training.methods.method import Method
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.methods.local_steps import LocalSteps


class Ditto(Method):
    """strength: how strongly personal models are drawn to the federated one (lambda); 0: each site
    trains alone."""

    summary = "beside the federated model a personal one, drawn to it"
    source = "Li et al. 2021, Ditto"
    alters = "beside the federated model sites train their own"

    strength: NonNegative = 1.0

    def check(self, training: Training) -> None:
        if training.local.lr * self.strength >= 2:
            raise PlanError(
                f"method.strength = {self.strength:g} with local.lr = {training.local.lr:g}: "
                "personal models would jump over the federated one and diverge; lr * strength "
                "must be below 2"
            )

    def descend(self, turn: Turn, steps: LocalSteps) -> Arrays:
        space = turn.space
        before = space.snapshot()
        steps.take()
        shared = space.snapshot()
        space.restore(before)
        space.put(self.personal(turn))
        optimizer = steps.optimizer()
        for index in steps.batches:
            grads = steps.gradient(index)
            torch._foreach_add_(grads, space.params, alpha=self.strength)
            torch._foreach_add_(grads, turn.received, alpha=-self.strength)
            optimizer.step(space.params, grads)
        own = space.trained()
        space.restore(shared)
        return own
