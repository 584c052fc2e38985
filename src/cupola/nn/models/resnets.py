"""ResNet-18/34/50 and PreactResNet-18/34/50, with any normalisation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Literal, NamedTuple

from torch import Tensor, nn

from cupola.nn.models.blocks import Layers, Residual, Shape, Size, image_model, pooled


class Depth(NamedTuple):
    """Blocks per stage; a bottleneck gives four times its width.

    groups, base: of ResNeXt: its 3x3 convolutions have so many groups of base / 64 the channels.
    early: a bottleneck halves the resolution in its first convolution, not in its second.
    """

    blocks: tuple[int, ...]
    bottleneck: bool
    groups: int = 1
    base: int = 64
    early: bool = False

    @property
    def features(self) -> int:
        return 2048 if self.bottleneck else 512


DEPTHS = {
    18: Depth((2, 2, 2, 2), False),
    34: Depth((3, 4, 6, 3), False),
    50: Depth((3, 4, 6, 3), True),
}
Block = Callable[[int, int, int], nn.Module]  # inputs, width, stride


def trunk(depth: Depth, channels: int, make: Layers) -> list[nn.Module]:
    """A post-activation ResNet, as in torchvision, without its head."""

    def block(inputs: int, width: int, stride: int) -> nn.Module:
        outputs = width * (4 if depth.bottleneck else 1)
        if depth.bottleneck:
            inner = width * depth.base // 64 * depth.groups
            first, then = (stride, 1) if depth.early else (1, stride)
            body = make.block(inputs, inner, 1, first)
            body += make.block(inner, inner, 3, then, groups=depth.groups)
            body += make.conv(inner, outputs, 1)
        else:
            body = [*make.block(inputs, width, 3, stride), *make.conv(width, outputs)]
        other = inputs != outputs or stride > 1
        shortcut = nn.Sequential(*make.conv(inputs, outputs, 1, stride)) if other else None
        return Residual(nn.Sequential(*body), shortcut, make.act())

    first = make.block(channels, 64, 3) if make.low else make.block(channels, 64, 7, 2)
    return [*first, *_early_pooling(make.low), *_stages(depth, block)]


class Preactivated(nn.Module):
    """before(x) goes through the body and, where the shape changes, through the shortcut."""

    def __init__(self, before: nn.Module, body: nn.Module, shortcut: nn.Module | None) -> None:
        super().__init__()
        self.before, self.body, self.shortcut = before, body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        return self.body(y) + (x if self.shortcut is None else self.shortcut(y))


def preactivated(
    depth: Depth, channels: int, make: Layers, shortcut: int, *, pooling: bool
) -> list[nn.Module]:
    """A pre-activation ResNet without its head; shortcut: size of its convolutions; pooling: of
    the high stem."""

    def block(inputs: int, width: int, stride: int) -> nn.Module:
        outputs = width * (4 if depth.bottleneck else 1)
        before = nn.Sequential(*make.normal(inputs), make.act())
        if depth.bottleneck:
            body = [*make.bare(inputs, width, 1), *make.pre(width, width, 3, stride=stride)]
            body += make.pre(width, outputs, 1)
        else:
            body = [*make.bare(inputs, width, 3, stride), *make.pre(width, width)]
        across = None
        if stride > 1:
            across = nn.Sequential(*make.bare(inputs, outputs, shortcut, stride, 0))
        elif inputs != outputs:
            across = nn.Sequential(*make.bare(inputs, outputs, 1))
        return Preactivated(before, nn.Sequential(*body), across)

    first = make.bare(channels, 64, 3) if make.low else make.bare(channels, 64, 7, 2)
    return [*first, *_early_pooling(make.low or not pooling), *_stages(depth, block)]


def _early_pooling(low: bool) -> list[nn.Module]:
    return [] if low else [nn.MaxPool2d(3, 2, padding=1)]


def _stages(depth: Depth, block: Block) -> list[nn.Module]:
    layers, inputs = [], 64
    for stage, (count, width) in enumerate(zip(depth.blocks, (64, 128, 256, 512))):
        for i in range(count):
            layers.append(block(inputs, width, 2 if stage and i == 0 else 1))
            inputs = width * (4 if depth.bottleneck else 1)
    return layers


def _resnet(number: int) -> None:
    """Register one depth, post-activation and pre-activation."""
    depth = DEPTHS[number]

    @image_model(
        f"resnet{number}", f"ResNet-{number}, with group normalisation unless told otherwise",
        least=(8, 32), bias=False, norm="group", stem="auto", init="he",
    )  # fmt: skip
    def resnet(make: Layers, shape: Shape, classes: int | None) -> list[nn.Module]:
        """As in torchvision.

        stem: high: 7x7 convolution of stride 2 and max-pooling, for images of at least 32x32; low:
            3x3 of stride 1 without pooling, for at least 8x8; auto: low below 64 pixels.
        """
        return [*trunk(depth, shape[0], make), *pooled(depth.features, classes)]

    @image_model(
        f"preactresnet{number}",
        f"PreactResNet-{number}: normalisation and activation before convolutions",
        least=(16, 64), bias=False, norm="group", stem="auto", last_dropout=0.5,
    )  # fmt: skip
    def preact_resnet(
        make: Layers,
        shape: Shape,
        classes: int | None,
        *,
        shortcut: Literal[1, 2] = 1,
        last_norm: bool = True,
        stem_pooling: bool = True,
    ) -> list[nn.Module]:
        """stem: as for `resnet`; for images of at least 16x16 (low) or 64x64 (high).

        shortcut: size of the convolutions in shortcuts that halve the resolution.
        last_norm: normalisation and activation before the last pooling.
        stem_pooling: max-pooling in the high stem; false: none, as published for Imagenette.
        """
        layers = preactivated(depth, shape[0], make, shortcut, pooling=stem_pooling)
        if last_norm:
            layers += [*make.last(depth.features), make.act()]
        return [*layers, *pooled(depth.features, classes)]


class Level(nn.Module):
    """Two pre-activation 3x3 convolutions of stride 1 plus x, or a normalised projection of x."""

    def __init__(self, inputs: int, outputs: int, make: Layers, *, first: bool) -> None:
        super().__init__()
        # The stem has normalised and activated what the very first block sees.
        self.before1 = nn.Sequential(*(() if first else (*make.normal(inputs), make.act())))
        (self.conv1,) = make.bare(inputs, outputs)
        self.before2 = nn.Sequential(*make.normal(outputs), make.act())
        (self.conv2,) = make.bare(outputs, outputs)
        self.shortcut = None
        if inputs != outputs:
            self.shortcut = nn.Sequential(*make.conv(inputs, outputs, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(self.before2(self.conv1(self.before1(x))))
        return y + (x if self.shortcut is None else self.shortcut(x))


@image_model(
    "crop_resnet18",
    "ResNet-18 for 24x24 crops: early down-sampling, then stride 1 (FedPT's CIFAR)",
    least=8, bias=False, norm="group", groups=2, init="he",
)  # fmt: skip
def crop_resnet18(
    make: Layers, shape: Shape, classes: int | None, *, width: Size = 64
) -> nn.Module:
    """Images of at least 8x8; 11,227,812 parameters for 100 classes, 11,181,642 for 10.

    Pre-activation, as in Reddi et al. (2021): a 7x7 stem of stride 2, max-pooling, four stages of
    two blocks that keep the resolution, 1x1 projections with a norm.
    width: channels of the first stage; every further one has twice as many.
    The 3x3 convolutions of the last stage are `stage4.0.conv1` to `stage4.1.conv2`.
    """
    stem = make.block(shape[0], width, 7, 2)
    layers = {"stem": nn.Sequential(*stem, *_early_pooling(low=False))}
    inputs = width
    for stage, outputs in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
        first = Level(inputs, outputs, make, first=stage == 1)
        layers[f"stage{stage}"] = nn.Sequential(first, Level(outputs, outputs, make, first=False))
        inputs = outputs
    layers["end"] = nn.Sequential(*make.normal(inputs), make.act())
    layers["head"] = nn.Sequential(*pooled(inputs, classes))
    return nn.Sequential(OrderedDict(layers))


# Parameters for 10 classes: 11,181,642, 21,289,802 and 23,528,522; of pre-activation with group
# norm and the low stem 11,172,170, 21,280,330 and 23,513,162.
for _number in DEPTHS:
    _resnet(_number)
