"""What several models share: options of image models, convolution blocks, heads, initialisation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import BeforeValidator, Field
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn.activations import Activation, activation
from cupola.nn.kernelnorm import Evaluation, KernelNorm2d, KNConv2d
from cupola.nn.models.building import model
from cupola.nn.normalisation import Norm, norm

Shape = tuple[int, ...]
Size = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, lt=1)]

#: torch: the layers' own defaults; he: convolutions normal by fan-out with zero bias, as
#: torchvision does; he-zero: the bias of the head is zero, too, as published for KNResNets.
Init = Literal["torch", "he", "he-zero"]


def _once_a_switch(value: Any) -> Any:
    """What `always_drop` was: true or false."""
    return ("random" if value else "off") if isinstance(value, bool) else value


KernelEvaluation = Annotated[Evaluation, BeforeValidator(_once_a_switch)]

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
        or precedes them; `dropout` and `evaluation` are theirs, `last_dropout` that of `last`.
    group_size, groups: of GroupNorm: channels in a group, or the number of groups.
    bias: of convolutions, with any other norm. low: whether images are small, so that the model
        begins without down-sampling.
    """

    norm: Norm
    activation: Activation = "relu"
    group_size: int | None = 32
    groups: int | None = None
    bias: bool = False
    dropout: float = 0.1
    evaluation: Evaluation = "expected"
    last_dropout: float = 0.0
    low: bool = False

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
                    evaluation=self.evaluation,
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

    def last(self, channels: int) -> list[nn.Module]:
        """Normalisation of the features that the head sees, each place by itself with "kernel"."""
        if self.kernel:
            return [KernelNorm2d(1, dropout=self.last_dropout, evaluation=self.evaluation)]
        return self.normal(channels)


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


def initialise(module: nn.Module, init: Init) -> nn.Module:
    """Initialise convolutions as asked; the other layers keep their defaults."""
    if init == "torch":
        return module
    for part in module.modules():
        if isinstance(part, nn.modules.conv._ConvNd):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        zeroed = nn.Linear if init == "he-zero" else ()
        if isinstance(part, (nn.modules.conv._ConvNd, zeroed)) and part.bias is not None:
            nn.init.zeros_(part.bias)
    return module


#: Options that image models have in common, in the order in which they are listed.
_OPTIONS: dict[str, Any] = {
    "norm": Norm, "activation": Activation, "stem": Stem, "group_size": Size | None,
    "groups": Size | None, "kernel_dropout": Share, "last_dropout": Share,
    "kernel_evaluation": KernelEvaluation, "init": Init,
}  # fmt: skip


def image_model(
    name: str,
    about: str,
    *,
    least: int | tuple[int, int],
    bias: bool | None = None,
    below: int = LOW_RESOLUTION,
    **defaults: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function (make, shape, classes, *, options of its own) -> module or its layers.

    make: the `Layers` that the common options ask for; shape: (channels, height, width).
    least: pixels of the smallest image, or (with the low stem, with the high one). below: pixels
        from which stem = "auto" is high. bias: of convolutions; None: where there is no
        normalisation, which brings a shift of its own.
    defaults: of common options; None: the model does not have it. All have norm, activation,
        group_size and groups (by default the one or the other), kernel_dropout, kernel_evaluation
        and init.
    """
    usual: dict[str, Any] = {"activation": "relu", "kernel_dropout": 0.1, "init": "torch"}
    usual |= {"kernel_evaluation": "expected"}
    grouping = {"group_size": None if "groups" in defaults else 32, "groups": None}
    taken = {**usual, **grouping, **defaults}
    common = {k: taken[k] for k in _OPTIONS if taken.get(k) is not None or k in grouping}

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        hints = get_type_hints(function, include_extras=True)
        own = {
            p.name: p.replace(annotation=hints[p.name])
            for p in inspect.signature(function).parameters.values()
            if p.kind is p.KEYWORD_ONLY
        }

        def make_model(input_shape: Shape, classes: int | None, **given: Any) -> nn.Module:
            option = {**common, **given, **_grouped(common, given)}
            stem = option.get("stem", "high")
            low = stem == "low" or (stem == "auto" and min(input_shape[1:], default=0) < below)
            shape = image(name, input_shape, least if isinstance(least, int) else least[not low])
            make = Layers(
                option["norm"],
                option["activation"],
                option["group_size"],
                option["groups"],
                bias=option["norm"] == "none" if bias is None else bias,
                dropout=option["kernel_dropout"],
                evaluation=option["kernel_evaluation"],
                last_dropout=option.get("last_dropout", 0.0),
                low=low,
            )
            made = function(make, shape, classes, **{k: v for k, v in given.items() if k in own})
            module = nn.Sequential(*made) if isinstance(made, list) else made
            return initialise(module, option.get("init", "torch"))

        before = list(inspect.signature(make_model).parameters.values())[:2]
        options = [*(_option(key, default) for key, default in common.items()), *own.values()]
        make_model.__signature__ = inspect.Signature([*before, *options])  # type: ignore[attr-defined]
        make_model.__annotations__ = {p.name: p.annotation for p in options}
        model(name, about)(make_model)
        return function

    return register


def _grouped(common: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """GroupNorm's groups, by their size or their number: the one that is given, or the default."""
    keys = ("group_size", "groups")
    wanted = {key: given[key] for key in keys if given.get(key) is not None}
    if len(wanted) == 2:
        raise PlanError(
            f"model.group_size = {given['group_size']} and model.groups = {given['groups']} both "
            "say how GroupNorm's channels are grouped: give one of them"
        )
    return {key: wanted.get(key) for key in keys} if wanted else {k: common[k] for k in keys}


def _option(key: str, default: Any) -> inspect.Parameter:
    """A common option, as part of a signature."""
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(key, kind, default=default, annotation=_OPTIONS[key])
