"""DenseNet-20x16: every layer sees the outputs of all before it (Huang et al., 2017)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from cupola.nn.models.blocks import Layers, Shape, image_model, pooled


class Grown(nn.Module):
    """x with body(x) behind its channels; activated: with what the body's first layer makes of x
    in place of x."""

    def __init__(self, body: nn.Sequential, *, activated: bool = False) -> None:
        super().__init__()
        self.body, self.activated = body, activated

    def forward(self, x: Tensor) -> Tensor:
        if not self.activated:
            return torch.cat([x, self.body(x)], 1)
        first, *others = self.body
        made = x = first(x)
        for layer in others:
            made = layer(made)
        return torch.cat([x, made], 1)


@image_model(
    "densenet20x16", "DenseNet of depth 20 and growth 16, for DP training (KernelNorm papers)",
    least=8, bias=False, norm="group", group_size=16, last_dropout=0.5,
)  # fmt: skip
def densenet20x16(
    make: Layers,
    shape: Shape,
    classes: int | None,
    *,
    carried: Literal["input", "activated"] = "input",
) -> list[nn.Module]:
    """Images of at least 8x8; 764,778 parameters for CIFAR-10, 759,882 with kernel norm.

    carried: what layers pass on beside their outputs: their input, as in Huang et al., or, where no
        norm stands before the activation, that activated, as the published code does in place.
    """
    width = 32
    activated = carried == "activated" and not make.normal(width)
    layers = make.bare(shape[0], width)
    for block in range(3):
        if block:
            layers += [*make.pre(width, width), nn.AvgPool2d(2)]
        for _ in range(5):
            layers.append(Grown(nn.Sequential(*make.pre(width, 16)), activated=activated))
            width += 16
    return [*layers, *make.last(width), make.act(), *pooled(width, classes)]
