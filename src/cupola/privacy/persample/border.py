"""The border of a reprogrammed model (see `cupola.nn.reprogram`)."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cupola.nn.reprogram import Border
from cupola.privacy.persample.rules import Gradients, Kept, Rule, rule


@rule(Border)
class BorderRule(Rule):
    """x + unit tanh(mask theta): the output's gradient times the slope of the border, which does
    not depend on x, so nothing of the input is kept."""

    def remember(self, layer: Any, x: Tensor, output: Tensor) -> Kept:
        del layer, x, output
        return ()

    def gradients(self, layer: Border, kept: Kept, g: Tensor) -> Gradients:
        del kept
        whole = g.squeeze(1) if g.shape[1] == 1 else g.sum(1)
        return {"theta": (whole * layer.slope()).contiguous()}
