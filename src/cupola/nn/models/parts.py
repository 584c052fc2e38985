"""What several models share: checks of the input, convolution blocks, heads, initialisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from cupola.errors import PlanError
from cupola.nn.activations import Activation, activation
from cupola.nn.normalisation import Norm, norm

Shape = tuple[int, ...]
Size = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]

#: torch: the layers' own defaults; he: normal by fan-out with zero bias, as torchvision does.
Init = Literal["torch", "he"]


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


def head(width: int, classes: int | None) -> list[nn.Module]:
    """Last layers: logits (n, classes), or (n,) for regression (classes None)."""
    if classes is None:
        return [nn.Linear(width, 1), nn.Flatten(0)]
    return [nn.Linear(width, classes)]


def block(
    inputs: int, outputs: int, kind: Norm, act: Activation, group_size: int, *, bias: bool
) -> list[nn.Module]:
    """Convolution 3x3, normalisation, activation."""
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=bias), norm(kind, outputs, group_size)]
    return [*(m for m in layers if not isinstance(m, nn.Identity)), activation(act)]


def initialise(module: nn.Module, init: Init) -> nn.Module:
    """Initialise convolutions as asked; the other layers keep their defaults."""
    if init == "he":
        for part in module.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
                if part.bias is not None:
                    nn.init.zeros_(part.bias)
    return module


def sequence(layers: Sequence[nn.Module], init: Init = "torch") -> nn.Sequential:
    """Layers one after the other, initialised as asked."""
    module = nn.Sequential(*layers)
    initialise(module, init)
    return module
