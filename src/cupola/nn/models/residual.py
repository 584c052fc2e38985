"""Residual networks: ResNet-8 of the KernelNorm papers and the usual ResNet-18."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from cupola.nn.activations import Activation
from cupola.nn.activations import activation as layer
from cupola.nn.models.parts import Init, Shape, Size, block, head, image, sequence
from cupola.nn.models.registry import model
from cupola.nn.normalisation import Norm
from cupola.nn.normalisation import norm as normalisation

#: Below this many pixels ResNet-18 takes its low-resolution stem unless told otherwise.
LOW_RESOLUTION = 64


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
    init: Init = "torch",
) -> nn.Module:
    """Images of at least 8x8; 1,855,178 parameters for CIFAR-10, 1,857,610 with group norm.

    A residual block is twice (convolution, norm, activation) plus the identity, with no activation
    after the sum. Convolutions have no bias.
    """
    channels, _, _ = image("resnet8", input_shape, 8)

    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        return block(inputs, outputs, norm, activation, group_size, bias=False)

    def residual(width: int) -> nn.Module:
        return Residual(nn.Sequential(*conv(width, width), *conv(width, width)))

    layers = [
        *conv(channels, 64),
        *conv(64, 128),
        nn.MaxPool2d(2),
        residual(128),
        *conv(128, 256),
        nn.MaxPool2d(2),
        residual(256),
        nn.MaxPool2d(2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
    ]
    return sequence([*layers, *head(1024, classes)], init)


@model("resnet18", "ResNet-18, with group normalisation unless told otherwise")
def resnet18(
    input_shape: Shape,
    classes: int | None,
    *,
    norm: Norm = "group",
    activation: Activation = "relu",
    stem: Literal["auto", "low", "high"] = "auto",
    group_size: Size = 32,
    init: Init = "he",
) -> nn.Module:
    """Post-activation ResNet-18 as in torchvision: 11,181,642 parameters for 10 classes.

    stem: high: 7x7 convolution of stride 2 and max-pooling, for images of at least 32x32; low: 3x3
        of stride 1 without pooling (11,173,962 parameters), for images of at least 8x8; auto: low
        below 64 pixels.
    """
    small = stem == "low" or (stem == "auto" and min(input_shape[1:], default=0) < LOW_RESOLUTION)
    channels, _, _ = image("resnet18", input_shape, 8 if small else 32)

    def conv(inputs: int, outputs: int, size: int, stride: int) -> list[nn.Module]:
        return [
            nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False),
            normalisation(norm, outputs, group_size),
        ]

    def residual(inputs: int, outputs: int, stride: int) -> nn.Module:
        body = [
            *conv(inputs, outputs, 3, stride),
            layer(activation),
            *conv(outputs, outputs, 3, 1),
        ]
        shortcut = nn.Sequential(*conv(inputs, outputs, 1, stride)) if stride > 1 else None
        return Residual(nn.Sequential(*body), shortcut, layer(activation))

    if small:
        first = [*conv(channels, 64, 3, 1), layer(activation)]
    else:
        first = [*conv(channels, 64, 7, 2), layer(activation), nn.MaxPool2d(3, 2, padding=1)]
    widths = (64, 64, 128, 256, 512)
    stages = [
        unit
        for stage in range(4)
        for unit in (
            residual(widths[stage], widths[stage + 1], 1 if stage == 0 else 2),
            residual(widths[stage + 1], widths[stage + 1], 1),
        )
    ]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head(512, classes)]
    return sequence([*first, *stages, *end], init)
