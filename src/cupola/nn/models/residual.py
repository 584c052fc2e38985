"""Shallow residual networks: ResNet-8, ResNet-9 and KNResNet-13 of the KernelNorm papers."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from cupola.nn.models.blocks import Layers, Residual, Shape, head, image_model, pooled


@image_model(
    "resnet8", "ResNet-8: two residual blocks, seven 3x3 convolutions (KernelNorm papers)",
    least=8, bias=False, norm="none", last_dropout=0.25,
)  # fmt: skip
def resnet8(make: Layers, shape: Shape, classes: int | None) -> list[nn.Module]:
    """Images of at least 8x8; 1,855,178 parameters for CIFAR-10, 1,857,610 with group norm.

    A residual block is twice (convolution, norm, activation) plus the identity, with no activation
    after the sum. Convolutions have no bias, but with kernel norm: 1,856,394; then the features are
    normalised once more before the head, with statistics of inputs dropped by `last_dropout`.
    """
    return [
        *make.block(shape[0], 64),
        *make.block(64, 128),
        nn.MaxPool2d(2),
        _twice(make, 128),
        *make.block(128, 256),
        nn.MaxPool2d(2),
        _twice(make, 256),
        nn.MaxPool2d(2),
        *(make.last(256) if make.kernel else []),
        *pooled(256, classes, 2),
    ]


@image_model(
    "resnet9", "ResNet-9: two residual blocks, eight 3x3 convolutions, max-pooling (DP, CUP)",
    least=16, norm="group", activation="mish", groups=32, kernel_dropout=0.05, last_dropout=0.25,
)  # fmt: skip
def resnet9(make: Layers, shape: Shape, classes: int | None) -> list[nn.Module]:
    """Images of at least 16x16; 2,448,714 parameters for CIFAR-10, 2,446,474 with kernel norm.

    groups: of GroupNorm (their number). The sums of residual blocks are normalised too, but with
    kernel norm, which normalises once before the last pooling instead.
    """
    return [
        *make.block(shape[0], 64),
        *make.block(64, 128),
        nn.MaxPool2d(2),
        _twice(make, 128),
        *make.normal(128),
        *make.block(128, 256),
        nn.MaxPool2d(2),
        *make.block(256, 256),
        nn.MaxPool2d(2),
        _twice(make, 256),
        *make.last(256),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        *head(1024, classes),
    ]


def _twice(make: Layers, width: int) -> nn.Module:
    """Two post-activation convolutions plus the identity."""
    return Residual(nn.Sequential(*make.block(width, width), *make.block(width, width)))


@image_model(
    "knresnet13", "KNResNet-13: four pre-activation residual blocks, made for DP training",
    least=(16, 64), norm="kernel", activation="mish", stem="auto", last_dropout=0.5,
)  # fmt: skip
def knresnet13(make: Layers, shape: Shape, classes: int | None) -> list[nn.Module]:
    """2,041,034 parameters for CIFAR-10.

    stem: low: 3x3 convolution, for images of at least 16x16; high: 7x7 of stride 2 and max-pooling
        (2,048,714 parameters), for at least 64x64.
    """

    def residual(width: int) -> nn.Module:
        return Residual(nn.Sequential(*make.pre(width, width), *make.pre(width, width)))

    if make.low:
        first = make.bare(shape[0], 64)
    else:
        first = [*make.bare(shape[0], 64, 7, 2), make.act(), nn.MaxPool2d(2)]
    layers = [*first, residual(64)]
    for inputs, outputs in pairwise((64, 64, 128, 256)):
        layers += [*make.pre(inputs, outputs), nn.MaxPool2d(2), residual(outputs)]
    return [*layers, *make.last(256), make.act(), *pooled(256, classes, 2)]
