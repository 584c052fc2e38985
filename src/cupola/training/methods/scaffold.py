"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich and Suresh 2020): control variates.

Every gradient of site k is corrected by c - c_k: c estimates the mean gradient of all sites, c_k
the site's own. Option II of the paper: after K steps of rate lr from w to w_k,

    c_k' = c_k - c + (w - w_k) / (K lr),      c' = c + sum over the round's sites (c_k' - c_k) / N
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from cupola.federation.message import Arrays, Spec
from cupola.training.methods.method import Correction, Kept, Method, Round
from cupola.training.turn import Turn


class Scaffold(Method):
    """Control variates, kept at the sites between rounds (`local.control_variates`)."""

    sends = True
    alters = "local.control_variates correct the gradients"
    prefix = "variate"

    def correction(self, turn: Turn) -> Correction:
        correction = torch._foreach_sub(self.received(turn), self.kept(turn))
        return lambda grads: torch._foreach_add_(grads, list(correction))

    def answer(self, turn: Turn, steps: int) -> Arrays:
        change = self._change(turn, steps)
        return {self.named(n): c.cpu().numpy() for n, c in zip(turn.space.names, change)}

    def keep(self, turn: Turn, steps: int) -> Kept:
        return {"": torch._foreach_add(self.kept(turn), self._change(turn, steps))}

    def _change(self, turn: Turn, steps: int) -> list[Tensor]:
        """c_k' - c_k."""
        moved = turn.space.split(turn.space.start - turn.space.flat)
        return [m / (steps * turn.lr) - c for m, c in zip(moved, self.received(turn))]

    def start(self, model: Mapping[str, np.ndarray]) -> Arrays:
        return {name: np.zeros_like(array) for name, array in model.items()}

    def expects(self, arrays: Mapping[str, np.ndarray]) -> dict[str, Spec]:
        return {n: Spec.of(a) for n, a in arrays.items() if n.startswith("variate/")}

    def combine(self, round: Round, update: Arrays) -> tuple[Arrays, Arrays]:
        moved: Arrays = {}
        for name, c in round.kept.items():
            if weight := round.weight(self.named(name)):
                step = round.mean(self.named(name)) * (weight / round.sites)
                moved[name] = (c + step).astype(c.dtype)
        return update, moved
