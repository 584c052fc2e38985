"""What several models share: checks of the input, convolution blocks, heads, initialisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field
from torch import nn

from cupola.errors import PlanError
from cupola.nn.activations import Activation, activation
from cupola.nn.kernelnorm import KernelNorm2d, KNConv2d
from cupola.nn.normalisation import Norm, norm

Shape = tuple[int, ...]
Size = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]

#: torch: the layers' own defaults; he: normal by fan-out with zero bias, as torchvision does.
Init = Literal["torch", "he"]

#: low: for small images, without early down-sampling; auto: low below `LOW_RESOLUTION` pixels.
Stem = Literal["auto", "low", "high"]
LOW_RESOLUTION = 64


def image(name: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    """(channels, height, width) of an input, or the reason why the model cannot take it."""
    if len(shape) != 3:
        raise PlanError(
            f"model = {name!r} takes images (channels, height, width), not inputs of shape {shape}"
            + ("; 'linear' and 'mlp' take any" if len(shape) < 3 else "")
        )
    channels, height, width = shape
    if min(height, width) < smallest:
        raise PlanError(
            f"model = {name!r} needs images of at least {smallest}x{smallest} pixels, "
            f"these have {height}x{width}: enlarge them or take a shallower model"
        )
    return channels, height, width


def tokens(name: str, shape: Shape) -> int:
    """Length of an input sequence of tokens, or the reason why the model cannot take it."""
    if len(shape) != 1:
        raise PlanError(f"model = {name!r} takes tokens (length,), not inputs of shape {shape}")
    return shape[0]


def needs_classes(name: str, classes: int | None) -> int:
    """The number of classes, where a model makes no sense without."""
    if classes is None:
        raise PlanError(f"model = {name!r} predicts classes; the data set has none (regression)")
    return classes


def small(stem: Stem, shape: Shape, below: int = LOW_RESOLUTION) -> bool:
    """Whether a model takes its stem for low resolution."""
    return stem == "low" or (stem == "auto" and min(shape[1:], default=0) < below)


def head(width: int, classes: int | None) -> list[nn.Module]:
    """Last layers: logits (n, classes), or (n,) for regression (classes None)."""
    if classes is None:
        return [nn.Linear(width, 1), nn.Flatten(0)]
    return [nn.Linear(width, classes)]


def pooled(channels: int, classes: int | None, size: int = 1) -> list[nn.Module]:
    """Features averaged over size x size parts of the image, then the last layers."""
    return [nn.AdaptiveAvgPool2d(size), nn.Flatten(), *head(channels * size**2, classes)]


@dataclass(frozen=True)
class Layers:
    """How a model's layers are made; one place for all normalisations.

    norm: with "kernel" convolutions normalise what they see (and have a bias), and no layer follows
        or precedes them; `dropout` and `always` are theirs.
    bias: of convolutions, with any other norm.
    """

    norm: Norm
    activation: Activation = "relu"
    group_size: int = 32
    groups: int | None = None
    bias: bool = False
    dropout: float = 0.1
    always: bool = False

    @property
    def kernel(self) -> bool:
        return self.norm == "kernel"

    def act(self) -> nn.Module:
        return activation(self.activation)

    def normal(self, channels: int) -> list[nn.Module]:
        """A layer of its own, if the norm has one."""
        if self.norm in ("none", "kernel"):
            return []
        return [norm(self.norm, channels, self.group_size, groups=self.groups)]

    def bare(
        self,
        inputs: int,
        outputs: int,
        size: int = 3,
        stride: int = 1,
        padding: int | tuple[tuple[int, int], ...] | None = None,
        groups: int = 1,
    ) -> list[nn.Module]:
        """A convolution; padding: half its size unless given, or (before, after) per dimension.
        groups: that its channels fall into."""
        padding = size // 2 if padding is None else padding
        if self.kernel:
            return [
                KNConv2d(
                    inputs, outputs, size, stride, padding, groups=groups, dropout=self.dropout,
                    always=self.always,
                )
            ]  # fmt: skip
        if isinstance(padding, int):
            return [
                nn.Conv2d(inputs, outputs, size, stride, padding, groups=groups, bias=self.bias)
            ]
        (top, bottom), (left, right) = padding
        around = nn.ZeroPad2d((left, right, top, bottom))
        return [around, nn.Conv2d(inputs, outputs, size, stride, groups=groups, bias=self.bias)]

    def conv(
        self, inputs: int, outputs: int, size: int = 3, stride: int = 1, **options: Any
    ) -> list[nn.Module]:
        """Convolution, then normalisation."""
        return [*self.bare(inputs, outputs, size, stride, **options), *self.normal(outputs)]

    def block(
        self, inputs: int, outputs: int, size: int = 3, stride: int = 1, **options: Any
    ) -> list[nn.Module]:
        """Convolution, normalisation, activation."""
        return [*self.conv(inputs, outputs, size, stride, **options), self.act()]

    def pre(self, inputs: int, outputs: int, size: int = 3, **options: Any) -> list[nn.Module]:
        """Normalisation, activation, convolution."""
        convolution = self.bare(inputs, outputs, size, **options)
        return [*self.normal(inputs), self.act(), *convolution]

    def last(self, channels: int, dropout: float) -> list[nn.Module]:
        """Normalisation of the features that the head sees, each place by itself with "kernel"."""
        if self.kernel:
            return [KernelNorm2d(1, dropout=dropout, always=self.always)]
        return self.normal(channels)


def initialise(module: nn.Module, init: Init) -> nn.Module:
    """Initialise convolutions as asked; the other layers keep their defaults."""
    if init == "he":
        for part in module.modules():
            if isinstance(part, nn.modules.conv._ConvNd):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
    return module


def sequence(layers: Sequence[nn.Module], init: Init = "torch") -> nn.Sequential:
    """Layers one after the other, initialised as asked."""
    module = nn.Sequential(*layers)
    initialise(module, init)
    return module
