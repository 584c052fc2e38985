"""Shallow residual networks: ResNet-8, ResNet-9 and KNResNet-13 of the KernelNorm papers."""

from __future__ import annotations

from itertools import pairwise

from torch import nn

from cupola.nn.models.blocks import Layers, Residual, Shape, Size, head, image_model, pooled


@image_model(
    "resnet8", "ResNet-8: two residual blocks, seven 3x3 convolutions (KernelNorm papers)",
    least=8, bias=False, norm="none", last_dropout=0.25,
)  # fmt: skip
def resnet8(
    make: Layers, shape: Shape, classes: int | None, *, width: Size = 64
) -> list[nn.Module]:
    """Images of at least 8x8; 1,855,178 parameters for CIFAR-10, 1,857,610 with group norm.

    A residual block is twice (convolution, norm, activation) plus the identity, with no activation
    after the sum. Convolutions have no bias, but with kernel norm: 1,856,394; then the features are
    normalised once more before the head, with statistics of inputs dropped by `last_dropout`.
    width: channels of the first convolution; the others have two or four times as many.
    """
    two, four = 2 * width, 4 * width
    return [
        *make.block(shape[0], width),
        *make.block(width, two),
        nn.MaxPool2d(2),
        _twice(make, two),
        *make.block(two, four),
        nn.MaxPool2d(2),
        _twice(make, four),
        nn.MaxPool2d(2),
        *(make.last(four) if make.kernel else []),
        *pooled(four, classes, 2),
    ]


@image_model(
    "resnet9", "ResNet-9: two residual blocks, eight 3x3 convolutions, max-pooling (DP, CUP)",
    least=16, norm="group", activation="mish", groups=32, kernel_dropout=0.05, last_dropout=0.25,
)  # fmt: skip
def resnet9(
    make: Layers, shape: Shape, classes: int | None, *, width: Size = 64
) -> list[nn.Module]:
    """Images of at least 16x16; 2,448,714 parameters for CIFAR-10, 2,446,474 with kernel norm.

    The sums of residual blocks are normalised too, but with
    kernel norm, which normalises once before the last pooling instead.
    width: channels of the first convolution; the others have two or four times as many.
    """
    two, four = 2 * width, 4 * width
    return [
        *make.block(shape[0], width),
        *make.block(width, two),
        nn.MaxPool2d(2),
        _twice(make, two),
        *make.normal(two),
        *make.block(two, four),
        nn.MaxPool2d(2),
        *make.block(four, four),
        nn.MaxPool2d(2),
        _twice(make, four),
        *make.last(four),
        nn.AdaptiveMaxPool2d(2),
        nn.Flatten(),
        *head(4 * four, classes),
    ]


def _twice(make: Layers, width: int) -> nn.Module:
    """Two post-activation convolutions plus the identity."""
    return Residual(nn.Sequential(*make.block(width, width), *make.block(width, width)))


@image_model(
    "knresnet13", "KNResNet-13: four pre-activation residual blocks, made for DP training",
    least=(16, 64), norm="kernel", activation="mish", stem="auto", last_dropout=0.5,
)  # fmt: skip
def knresnet13(
    make: Layers, shape: Shape, classes: int | None, *, width: Size = 64
) -> list[nn.Module]:
    """2,041,034 parameters for CIFAR-10.

    stem: low: 3x3 convolution, for images of at least 16x16; high: 7x7 of stride 2 and max-pooling
        (2,048,714 parameters), for at least 64x64.
    width: channels of the first convolution; the last ones have four times as many.
    """

    def residual(channels: int) -> nn.Module:
        return Residual(nn.Sequential(*make.pre(channels, channels), *make.pre(channels, channels)))

    if make.low:
        first = make.bare(shape[0], width)
    else:
        first = [*make.bare(shape[0], width, 7, 2), make.act(), nn.MaxPool2d(2)]
    layers = [*first, residual(width)]
    for inputs, outputs in pairwise((width, width, 2 * width, 4 * width)):
        layers += [*make.pre(inputs, outputs), nn.MaxPool2d(2), residual(outputs)]
    return [*layers, *make.last(4 * width), make.act(), *pooled(4 * width, classes, 2)]
