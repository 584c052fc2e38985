"""DenseNet-20x16: every layer sees the outputs of all before it (Huang et al., 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cupola.nn.activations import Activation
from cupola.nn.models.parts import Init, Layers, Shape, Share, Size, image, pooled, sequence
from cupola.nn.models.registry import model
from cupola.nn.normalisation import Norm


class Grown(nn.Module):
    """x with body(x) behind its channels."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.body(x)], 1)


@model("densenet20x16", "DenseNet of depth 20 and growth 16, for DP training (KernelNorm papers)")
def densenet20x16(
    input_shape: Shape,
    classes: int | None,
    *,
    norm: Norm = "group",
    activation: Activation = "relu",
    group_size: Size = 16,
    kernel_dropout: Share = 0.1,
    last_dropout: Share = 0.5,
    always_drop: bool = False,
    init: Init = "torch",
) -> nn.Module:
    """Images of at least 8x8; 764,778 parameters for CIFAR-10, 759,882 with kernel norm."""
    channels, _, _ = image("densenet20x16", input_shape, 8)
    make = Layers(norm, activation, group_size, dropout=kernel_dropout, always=always_drop)
    width, layers = 32, make.bare(channels, 32)
    for block in range(3):
        if block:
            layers += [*make.pre(width, width), nn.AvgPool2d(2)]
        for _ in range(5):
            layers.append(Grown(nn.Sequential(*make.pre(width, 16))))
            width += 16
    layers += [*make.last(width, last_dropout), make.act(), *pooled(width, classes)]
    return sequence(layers, init)
