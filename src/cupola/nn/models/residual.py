"""Shallow residual networks: ResNet-8, ResNet-9 and KNResNet-13 of the KernelNorm papers."""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn

from cupola.nn.activations import Activation
from cupola.nn.models.parts import (
    Init,
    Layers,
    Shape,
    Share,
    Size,
    Stem,
    head,
    image,
    pooled,
    sequence,
    small,
)
from cupola.nn.models.registry import model
from cupola.nn.normalisation import Norm


class Residual(nn.Module):
    """x + body(x), followed by `after` (nothing unless given); `shortcut` may change x's shape."""

    def __init__(
        self,
        body: nn.Module,
        shortcut: nn.Module | None = None,
        after: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.body = body
        self.shortcut = shortcut
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x) + (x if self.shortcut is None else self.shortcut(x))
        return y if self.after is None else self.after(y)


@model("resnet8", "ResNet-8: two residual blocks, seven 3x3 convolutions (KernelNorm papers)")
def resnet8(
    input_shape: Shape,
    classes: int | None,
    *,
    norm: Norm = "none",
    activation: Activation = "relu",
    group_size: Size = 32,
    kernel_dropout: Share = 0.1,
    last_dropout: Share = 0.25,
    always_drop: bool = False,
    init: Init = "torch",
) -> nn.Module:
    """Images of at least 8x8; 1,855,178 parameters for CIFAR-10, 1,857,610 with group norm.

    A residual block is twice (convolution, norm, activation) plus the identity, with no activation
    after the sum. Convolutions have no bias, but with kernel norm: 1,856,394; then the features are
    normalised once more before the head, with statistics of inputs dropped by `last_dropout`.
    """
    channels, _, _ = image("resnet8", input_shape, 8)
    make = Layers(norm, activation, group_size, dropout=kernel_dropout, always=always_drop)
    layers = [
        *make.block(channels, 64),
        *make.block(64, 128),
        nn.MaxPool2d(2),
        _twice(make, 128),
        *make.block(128, 256),
        nn.MaxPool2d(2),
        _twice(make, 256),
        nn.MaxPool2d(2),
        *(make.last(256, last_dropout) if make.kernel else []),
    ]
    return sequence([*layers, *pooled(256, classes, 2)], init)


@model("resnet9", "ResNet-9: two residual blocks, eight 3x3 convolutions, max-pooling (DP, CUP)")
def resnet9(
    input_shape: Shape,
    classes: int | None,
    *,
    norm: Norm = "group",
    activation: Activation = "mish",
    groups: Size = 32,
    kernel_dropout: Share = 0.05,
    last_dropout: Share = 0.25,
    always_drop: bool = False,
    init: Init = "torch",
) -> nn.Module:
    """Images of at least 16x16; 2,448,714 parameters for CIFAR-10, 2,446,474 with kernel norm.

    groups: of GroupNorm (their number). The sums of residual blocks are normalised too, but with
    kernel norm, which normalises once before the last pooling instead.
    """
    channels, _, _ = image("resnet9", input_shape, 16)
    make = Layers(
        norm, activation, groups=groups, bias=norm == "none", dropout=kernel_dropout,
        always=always_drop,
    )  # fmt: skip
    layers = [
        *make.block(channels, 64),
        *make.block(64, 128),
        nn.MaxPool2d(2),
        _twice(make, 128),
        *make.normal(128),
        *make.block(128, 256),
        nn.MaxPool2d(2),
        *make.block(256, 256),
        nn.MaxPool2d(2),
        _twice(make, 256),
        *make.last(256, last_dropout),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
    ]
    return sequence([*layers, *head(1024, classes)], init)


def _twice(make: Layers, width: int) -> nn.Module:
    """Two post-activation convolutions plus the identity."""
    return Residual(nn.Sequential(*make.block(width, width), *make.block(width, width)))


@model("knresnet13", "KNResNet-13: four pre-activation residual blocks, made for DP training")
def knresnet13(
    input_shape: Shape,
    classes: int | None,
    *,
    norm: Norm = "kernel",
    activation: Activation = "mish",
    stem: Stem = "auto",
    group_size: Size = 32,
    kernel_dropout: Share = 0.1,
    last_dropout: Share = 0.5,
    always_drop: bool = False,
    init: Init = "torch",
) -> nn.Module:
    """2,041,034 parameters for CIFAR-10.

    stem: low: 3x3 convolution, for images of at least 16x16; high: 7x7 of stride 2 and max-pooling
        (2,048,714 parameters), for at least 64x64.
    """
    low = small(stem, input_shape)
    channels, _, _ = image("knresnet13", input_shape, 16 if low else 64)
    make = Layers(
        norm, activation, group_size, bias=norm == "none", dropout=kernel_dropout,
        always=always_drop,
    )  # fmt: skip

    def residual(width: int) -> nn.Module:
        return Residual(nn.Sequential(*make.pre(width, width), *make.pre(width, width)))

    if low:
        first = make.bare(channels, 64)
    else:
        first = [*make.bare(channels, 64, 7, 2), make.act(), nn.MaxPool2d(2)]
    widths = (64, 64, 128, 256)
    layers = [*first, residual(64)]
    for inputs, outputs in pairwise(widths):
        layers += [*make.pre(inputs, outputs), nn.MaxPool2d(2), residual(outputs)]
    layers += [*make.last(256, last_dropout), make.act(), *pooled(256, classes, 2)]
    return sequence(layers, init)
