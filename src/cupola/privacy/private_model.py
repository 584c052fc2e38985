"""The model of a private loop, and its losses: computed when `backward` is called.

In training a private model gives an `Output`, a loss of torch makes a `BatchLoss` of it, and only
its `backward` computes anything, sample by sample (see `plain_loop`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.privacy.persample.clipping import PerSample

if TYPE_CHECKING:
    from cupola.privacy.plain_loop import Private

#: Losses of torch that can be taken for each sample.
LOSSES = frozenset(
    {
        *(F.cross_entropy, F.nll_loss, F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss),
        *(F.binary_cross_entropy, F.binary_cross_entropy_with_logits, F.soft_margin_loss),
        *(F.kl_div, F.poisson_nll_loss, F.multi_margin_loss, F.multilabel_margin_loss),
        F.multilabel_soft_margin_loss,
    }
)
#: Of these, whose `weight` is one of classes; elsewhere it would be one of samples.
_BY_CLASS = frozenset({F.cross_entropy, F.nll_loss, F.multi_margin_loss})
WAY_OUT = (
    "give the model's output to one loss of torch.nn.functional (or its module), or use "
    "`private.backward(x, y, loss)` with a loss that has one value per sample"
)


def kind_of(thing: Any) -> str:
    word = type(thing).__name__
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}"


class PrivateModel:
    """The model in a private loop. In training it hands its input on, and computes with the loss;
    in evaluation mode, and without gradients, it is the module itself."""

    def __init__(self, module: nn.Module, private: Private) -> None:
        self.module, self._private = module, private

    def __call__(self, *args: Any, **more: Any) -> Any:
        if not self.module.training or not torch.is_grad_enabled():
            return self.module(*args, **more)
        if len(args) != 1 or more or not isinstance(args[0], Tensor):
            raise PlanError(
                "a private model takes one tensor with a row for each sample; wrap a model of "
                "several inputs in one that takes them as one"
            )
        return Output(args[0], self._private)

    def __getattr__(self, name: str) -> Any:
        if name in ("module", "_private"):  # of one that is not made yet
            raise AttributeError(name)
        return getattr(self.module, name)

    def __deepcopy__(self, memo: Any) -> nn.Module:
        """The module's copy alone: a private loop has one model."""
        return copy.deepcopy(self.module, memo)

    def train(self, mode: bool = True) -> PrivateModel:
        self.module.train(mode)
        return self

    def eval(self) -> PrivateModel:
        return self.train(False)

    def to(self, *args: Any, **more: Any) -> PrivateModel:
        self.module.to(*args, **more)
        return self


class Output:
    """What a private model gives in training: its output, when a loss asks for it.

    Given to a loss of torch it becomes a `BatchLoss`. Anything else sees the output without its
    gradient (for the accuracy of a batch, say).
    """

    def __init__(self, x: Tensor, private: Private) -> None:
        self._x, self._private = x, private
        self._value: Tensor | None = None

    @property
    def value(self) -> Tensor:
        """The output; gradients through it are refused."""
        if self._value is None:
            with torch.no_grad():
                made = self._private._module(self._x)
            if not isinstance(made, Tensor):
                raise PlanError(f"the model gives {kind_of(made)}, not one tensor; {WAY_OUT}")
            self._value = made.requires_grad_()
            self._value.register_hook(_refuse_gradient)
        return self._value

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: Any) -> Tensor:
        return self.value[index]

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        more = dict(kwargs or {})
        if function in LOSSES and args and isinstance(args[0], Output):
            return args[0]._loss(function, args[1:], more)
        shown = [a.value if isinstance(a, Output) else a for a in args]
        return function(
            *shown, **{k: v.value if isinstance(v, Output) else v for k, v in more.items()}
        )

    def _loss(
        self, function: Callable[..., Any], args: tuple[Any, ...], more: dict[str, Any]
    ) -> BatchLoss:
        target = args[0] if args else more.pop("target", None)
        if len(args) > 1:
            raise PlanError(f"{function.__name__}: give options by name; {WAY_OUT}")
        if more.pop("reduction", "mean") != "mean":
            raise PlanError(f"{function.__name__}: reduction must be 'mean' (the default)")
        if not isinstance(target, Tensor):
            raise PlanError(f"{function.__name__}: targets are {kind_of(target)}, not a tensor")
        if more.get("weight") is not None and function not in _BY_CLASS:
            raise PlanError(f"{function.__name__}: weight is of a batch's samples; leave it out")
        for old in ("size_average", "reduce"):
            if more.pop(old, None) is not None:
                raise PlanError(f"{function.__name__}: {old} is of old versions; leave it out")
        names = sorted(more)
        key = (function, *names, *(more[name] for name in names))
        engine = self._private._engine(key, partial(_each, function, more))
        return BatchLoss(self._private, engine, self._x, target)


def _each(
    function: Callable[..., Tensor], options: Mapping[str, Any], output: Tensor, y: Tensor
) -> Tensor:
    """A loss of torch with one value per sample: the mean over its own elements."""
    values = function(output, y, reduction="none", **options)
    if values.dim() < 2:
        return values
    ignored = options.get("ignore_index")
    if ignored is None or values.shape != y.shape:
        return values.flatten(1).mean(1)
    return values.flatten(1).sum(1) / (y != ignored).flatten(1).sum(1).clamp_min(1)


def _refuse_gradient(gradient: Tensor) -> None:  # noqa: ARG001
    raise PlanError(f"this loss would give gradients that are not private; {WAY_OUT}")


class BatchLoss:
    """The mean loss of a batch, not computed yet: `backward` does it, and `item` tells it after."""

    def __init__(self, private: Private, engine: PerSample, x: Tensor, y: Tensor) -> None:
        self._private, self._engine, self._x, self._y = private, engine, x, y
        self._losses: Tensor | None = None

    def backward(self) -> None:
        """Add the noised mean of clipped gradients to `.grad`."""
        self._losses = self._private._backward(self._engine, self._x, self._y)

    def item(self) -> float:
        """The mean loss: computed from the samples, and not noised. nan of an empty batch."""
        if self._losses is None:
            with torch.no_grad():
                made = self._engine.loss(self._private._module(self._x), self._y)
            return float(made.mean()) if len(made) else math.nan
        return float(self._losses.mean()) if len(self._losses) else math.nan

    def __float__(self) -> float:
        return self.item()

    def detach(self) -> Tensor:
        return torch.tensor(self.item())

    def __getattr__(self, name: str) -> Any:
        raise PlanError(
            f"a private loss has backward() and item(), and no '{name}': its gradient is that of "
            f"one loss of torch; {WAY_OUT}"
        )

    def __add__(self, other: Any) -> Any:
        raise PlanError(f"a private loss cannot be added to another; {WAY_OUT}")

    __radd__ = __sub__ = __rsub__ = __truediv__ = __mul__ = __rmul__ = __add__
