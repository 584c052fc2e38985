"""KNResNet-18/34/50: residual networks around 2x2 kernels, which kernel normalisation gains from.

Nasirigerdeh et al., "Kernel normalized convolutional networks" (TMLR 2024), appendix A.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from cupola.nn.models.blocks import Layers, Residual, Shape, image_model, pooled

Pairs = tuple[tuple[int, int], tuple[int, int]]
_BEFORE: Pairs = ((1, 0), (1, 0))
_AFTER: Pairs = ((0, 1), (0, 1))
_MORE: Pairs = ((2, 1), (2, 1))
#: Below this many pixels the low-resolution stem is taken: the high one needs as many.
HIGH = 96


class Stage(NamedTuple):
    """Residual blocks, `width` wide outside and `middle` inside."""

    blocks: int
    width: int
    middle: int


class Architecture(NamedTuple):
    """A KNResNet; `end`: inputs and outputs of the convolution after the stages, if any."""

    stages: tuple[Stage, ...]
    bottleneck: bool = False
    end: tuple[int, int] | None = None

    @property
    def features(self) -> int:
        return self.end[1] if self.end else self.stages[-1].width


ARCHITECTURES = {
    18: Architecture(
        (Stage(2, 64, 256), Stage(2, 256, 256), Stage(1, 512, 512), Stage(1, 724, 724)),
        end=(724, 512),
    ),
    34: Architecture(
        (Stage(4, 64, 256), Stage(5, 256, 320), Stage(3, 512, 640), Stage(2, 512, 843)),
        end=(512, 512),
    ),
    50: Architecture(
        (Stage(4, 256, 64), Stage(5, 512, 128), Stage(4, 810, 201), Stage(2, 2048, 512)),
        bottleneck=True,
    ),
}


def residual(make: Layers, stage: Stage, size: int, *, bottleneck: bool) -> nn.Module:
    """A basic block or a bottleneck whose outer kernels are `size` wide."""
    width, middle = stage.width, stage.middle
    # Kernels of even size add a place, which the last one takes away again.
    first, last = (1, 0) if size == 2 else (size // 2, size // 2)
    body = make.pre(width, middle, size, padding=first)
    body += make.pre(middle, middle) if bottleneck else []
    body += make.pre(middle, width, size, padding=last)
    return Residual(nn.Sequential(*body))


def _trunk(plan: Architecture, channels: int, make: Layers) -> list[nn.Module]:
    width, low = plan.stages[0].width, make.low
    layers = make.bare(channels, width, 3) if low else make.bare(channels, width, 7, 2)
    layers += [] if low else [nn.MaxPool2d(3, 2, padding=1)]
    paddings = (_BEFORE, _AFTER, _BEFORE if low else _MORE)
    for i, stage in enumerate(plan.stages):
        pointwise = plan.bottleneck and i == 3
        if i:
            size, padding = (1, 0) if pointwise else (2, paddings[i - 1])
            layers += [*make.pre(width, stage.width, size, padding=padding), nn.MaxPool2d(2)]
        width, size = stage.width, 1 if pointwise else 2
        layers += [
            residual(make, stage, size, bottleneck=plan.bottleneck) for _ in range(stage.blocks)
        ]
    if plan.end:
        layers += [nn.MaxPool2d(2), *make.pre(*plan.end, 2, padding=1 if low else 0)]
    return layers


def knresnet_layers(
    plan: Architecture, channels: int, classes: int | None, make: Layers
) -> list[nn.Module]:
    """A whole KNResNet for images of so many channels."""
    layers = [*_trunk(plan, channels, make), *make.last(plan.features), make.act()]
    return [*layers, *pooled(plan.features, classes)]


def _knresnet(number: int) -> None:
    """Register one depth."""
    plan = ARCHITECTURES[number]

    @image_model(
        f"knresnet{number}",
        f"KNResNet-{number}: made for kernel normalisation, mostly of 2x2 kernels",
        least=(16, HIGH), below=HIGH, norm="kernel", stem="auto", kernel_dropout=0.05,
        last_dropout=0.25, init="he",
    )  # fmt: skip
    def knresnet(make: Layers, shape: Shape, classes: int | None) -> list[nn.Module]:
        """stem: low: 3x3 convolution, for images of at least 16x16; high: 7x7 of stride 2 and
        max-pooling, for at least 96x96; auto: low below that."""
        return knresnet_layers(plan, shape[0], classes, make)


# Parameters with kernel norm for CIFAR-100: 11,215,840, 21,323,450 and 23,681,570;
# for ImageNet: 11,685,220, 21,792,830 and 25,556,390.
for _number in ARCHITECTURES:
    _knresnet(_number)
