"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith 2020): a proximal term at the site.

A site minimises F_k(w) + mu/2 |w - w_t|^2, so that it stays near the model w_t that it received:
mu (w - w_t) is added to every gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cupola.secure.sum_choice import Positive
from cupola.training.methods.method import Correction, Method
from cupola.training.turn import Turn


class FedProx(Method):
    """mu: strength of the proximal term (`local.proximal`)."""

    post_processing = True
    stackable = True
    alters = ""  # a single step from the received model is not changed

    mu: Positive

    def correction(self, turn: Turn) -> Correction:
        params, received, mu = turn.params, turn.received, self.mu

        def add(grads: list[Tensor]) -> None:
            torch._foreach_add_(grads, params, alpha=mu)
            torch._foreach_add_(grads, received, alpha=-mu)

        return add
