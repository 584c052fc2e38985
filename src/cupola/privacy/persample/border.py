"""The border of a reprogrammed model, and the size of its image (see `cupola.nn.reprogram` and
`cupola.nn.trained_size`)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cupola.nn.reprogram import Border
from cupola.nn.trained_size import Around, Resized
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


@rule(Around)
class AroundRule(Rule):
    """The same where the image leaves room for it; how much it covers is the input's last
    channel."""

    def remember(self, layer: Any, x: Tensor, output: Tensor) -> Kept:
        del layer, output
        return (x[:, -1:],)

    def gradients(self, layer: Around, kept: Kept, g: Tensor) -> Gradients:
        (covered,) = kept
        return {"theta": ((g * (1 - covered)).sum(1) * layer.slope()).contiguous()}


@rule(Resized)
class ResizedRule(Rule):
    """The size is one number for all images: each is placed again by a copy of its own, whose
    gradient is that image's."""

    def gradients(self, layer: Resized, kept: Kept, g: Tensor) -> Gradients:
        (x,) = kept
        with torch.enable_grad():
            own = layer.scale.detach().repeat(g.shape[0] * g.shape[1]).requires_grad_()
            placed = layer.placed(x.flatten(0, 1), own)
            (found,) = torch.autograd.grad(placed, own, g.flatten(0, 1))
        return {"scale": found.view(g.shape[:2]).sum(1, keepdim=True)}
