"""pFedMe (Dinh, Tran and Nguyen 2020): personalisation with Moreau envelopes.

Site k minimises the envelope of its loss, whose gradient at w is lambda (w - theta(w)):

    theta(w) = argmin F_k(theta) + lambda/2 |theta - w|^2
    w <- w - lr lambda (w - theta(w))

one step a batch, with theta from `steps` gradient steps on that batch. theta is the site's own
model and stays there. The paper's beta, by which the coordinator mixes the mean of sites' w into
the last one, is `server.lr`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from pydantic import Field

from cupola.errors import PlanError
from cupola.federation.message import Arrays
from cupola.secure.sum_choice import Positive
from cupola.training.methods.method import Method
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.methods.local_steps import LocalSteps


class PFedMe(Method):
    """strength: of the pull to the federated model (lambda). rate, steps: learning rate and steps
    of the personal model on every batch (K)."""

    summary = "descends on the Moreau envelope of each site's loss, whose minimiser is personal"
    source = "Dinh et al. 2020"
    alters = "sites descend on Moreau envelopes of their losses"

    strength: Positive = 15.0
    rate: Positive = 0.05
    steps: Annotated[int, Field(ge=1)] = 5

    def check(self, training: Training) -> None:
        local = training.local
        if local.send != "change":
            raise PlanError(f"{self.key} works on the change of the model: local.send = 'change'")
        for key in ("proximal", "control_variates", "momentum", "weight_decay"):
            if getattr(local, key):
                raise PlanError(f"{self.key} has steps of its own; leave local.{key} out")
        if local.optimizer != "sgd":
            raise PlanError(f"{self.key} has steps of its own: local.optimizer = 'sgd'")
        for key, rate in (("local.lr", local.lr), ("method.rate", self.rate)):
            if rate * self.strength >= 2:
                raise PlanError(
                    f"{key} = {rate:g} with method.strength = {self.strength:g} would diverge: "
                    f"their product must be below 2; take {key} = {1 / self.strength:.2g}, say"
                )

    def descend(self, turn: Turn, steps: LocalSteps) -> Arrays:
        space = turn.space
        w = [p.clone() for p in space.params]
        for index in steps.batches:
            for _ in range(self.steps):  # at theta, which the parameters hold meanwhile
                grads = steps.gradient(index)
                torch._foreach_add_(grads, space.params, alpha=self.strength)
                torch._foreach_add_(grads, w, alpha=-self.strength)
                torch._foreach_add_(space.params, grads, alpha=-self.rate)
            apart = torch._foreach_sub(w, space.params)
            torch._foreach_add_(w, apart, alpha=-turn.lr * self.strength)
        found = space.trained()
        torch._foreach_copy_(space.params, w)
        return found
