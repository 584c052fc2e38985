"""DenseNet-20x16: every layer sees the outputs of all before it (Huang et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cupola.nn.models.blocks import Layers, Shape, image_model, pooled


class Grown(nn.Module):
    """x with body(x) behind its channels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


@image_model(
    "densenet20x16", "DenseNet of depth 20 and growth 16, for DP training (KernelNorm papers)",
    least=8, bias=False, norm="group", group_size=16, last_dropout=0.5,
)  # fmt: skip
def densenet20x16(make: Layers, shape: Shape, classes: int | None) -> list[nn.Module]:
    """Images of at least 8x8; 764,778 parameters for CIFAR-10, 759,882 with kernel norm."""
    width, layers = 32, make.bare(shape[0], 32)
    for block in range(3):
        if block:
            layers += [*make.pre(width, width), nn.AvgPool2d(2)]
        for _ in range(5):
            layers.append(Grown(nn.Sequential(*make.pre(width, 16))))
            width += 16
    return [*layers, *make.last(width), make.act(), *pooled(width, classes)]
