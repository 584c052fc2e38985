"""FedDyn (Acar, Zhao, Matas, Mattina, Whatmough and Saligrama 2021): dynamic regularisation.

Site k minimises F_k(w) - <h_k, w> + alpha/2 |w - w_t|^2, where h_k is the gradient that it had at
the end of its last turn; so sites' optima agree with the federation's at convergence:

    h_k' = h_k - alpha (w_k - w_t)
    h'   = h - alpha/N sum over the round's sites (w_k - w_t)
    w    = mean of w_k - h'/alpha
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from cupola.federation.message import Arrays
from cupola.secure.sum_choice import Positive
from cupola.training.methods.method import Correction, Kept, Method, Round, require_plain_mean
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training


class FedDyn(Method):
    """alpha: strength of the regularisation, by which sites' gradients are remembered as well."""

    summary = "dynamic regularisation: sites' optima agree with the federation's"
    source = "Acar et al. 2021"
    post_processing = True
    alters = "sites' gradients are corrected by those of their last turn"

    alpha: Positive = 0.1

    def check(self, training: Training) -> None:
        require_plain_mean(self, training)

    def correction(self, turn: Turn) -> Correction:
        params, received, own = turn.params, turn.received, self.kept(turn, "h")

        def add(grads: list[Tensor]) -> None:
            torch._foreach_add_(grads, params, alpha=self.alpha)
            torch._foreach_add_(grads, received, alpha=-self.alpha)
            torch._foreach_sub_(grads, own)

        return add

    def keep(self, turn: Turn, steps: int) -> Kept:  # noqa: ARG002
        moved = torch._foreach_sub(turn.params, turn.received)
        return {"h": torch._foreach_sub(self.kept(turn, "h"), moved, alpha=self.alpha)}

    def start(self, model: Mapping[str, np.ndarray]) -> Arrays:
        return {f"h/{name}": np.zeros(array.shape) for name, array in model.items()}

    def combine(self, round: Round, update: Arrays) -> tuple[Arrays, Arrays]:
        """update: the mean of w_t - w_k."""
        pulled = self.alpha * round.share
        h = {n: round.kept[f"h/{n}"] + pulled * change for n, change in update.items()}
        moved = {n: change + h[n] / self.alpha for n, change in update.items()}
        return moved, {f"h/{n}": array for n, array in h.items()}
