"""Losses with one value per sample, shape (n,), so that no sample's loss depends on the others.

The loss of a sample is the mean over its own pixels or tokens; a batch's loss is the mean over its
samples. That is what lets sites' sums of gradients add up to the centralised gradient, and it
differs from averaging over all counted pixels of a batch. All losses work under `torch.func.vmap`
over a leading dimension of sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from cupola.base.registry import Registry

#: (output, y) -> one value per sample, shape (n,).
Loss = Callable[[Tensor, Tensor], Tensor]
Kind = Literal["classification", "regression", "segmentation", "language"]

NonNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]

_LOSSES: Registry[Callable[..., Tensor]] = Registry("loss")
names = _LOSSES.names
describe = _LOSSES.describe
options = _LOSSES.options


@dataclass(frozen=True)
class NamedLoss:
    """A loss that knows its name and options, so that an engine can recognise it."""

    name: str
    function: Callable[..., Tensor]
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __call__(self, output: Tensor, y: Tensor) -> Tensor:
        return self.function(output, y, **self.options)


def find_loss(name: str, **options: Any) -> NamedLoss:
    """A loss by name, or the user's own by "module:callable", with its options filled in."""
    return NamedLoss(name, _LOSSES.find(name), _LOSSES.check(name, options))


def default_loss(kind: Kind, padding: int | None = None) -> NamedLoss:
    """What a kind of task is trained with unless the plan says otherwise.

    padding: token that is no word, where texts are filled up with one.
    """
    if kind == "regression":
        return find_loss("squared_error")
    ignored = 255 if kind == "segmentation" else padding
    return find_loss("cross_entropy", **({} if ignored is None else {"ignore_index": ignored}))


@_LOSSES.add("cross_entropy", "cross-entropy of the softmax of the logits")
def cross_entropy(
    output: Tensor, y: Tensor, *, label_smoothing: Share = 0.0, ignore_index: int = -100
) -> Tensor:
    """Logits (n, C), (n, C, H, W) or (n, T, V) with classes (n,), (n, H, W) or (n, T).

    label_smoothing: share of the target spread evenly over all classes.
    ignore_index: label of elements that do not count; a sample with none that counts has loss 0.
    """
    values = _cross_entropy(output, y, label_smoothing=label_smoothing, ignore_index=ignore_index)
    return mean_of_sample(values, y != ignore_index)


@_LOSSES.add("focal", "focal loss: cross-entropy times (1 - probability of the class) ^ gamma")
def focal(
    output: Tensor, y: Tensor, *, gamma: NonNegative = 2.0, ignore_index: int = -100
) -> Tensor:
    """Focal loss (Lin et al., 2017); shapes as for cross-entropy, which is gamma = 0."""
    values = _cross_entropy(output, y, ignore_index=ignore_index)
    # 1 - p, exact for p near 1; the floor keeps the gradient finite where gamma is below 1.
    miss = (-torch.expm1(-values)).clamp_min(torch.finfo(values.dtype).tiny ** 0.5)
    return mean_of_sample(miss**gamma * values, y != ignore_index)


@_LOSSES.add("log", "binary log loss on one logit or two")
def log(output: Tensor, y: Tensor) -> Tensor:
    """One logit (n,) or (n, 1), or two (n, 2), with labels 0 and 1, shape (n,)."""
    if output.dim() == 2 and output.shape[1] == 2:
        output = output[:, 1] - output[:, 0]
    elif output.dim() == 2 and output.shape[1] == 1:
        output = output[:, 0]
    if output.shape != y.shape:
        raise ValueError(
            f"the log loss takes one or two logits per sample and labels (n,), "
            f"not {tuple(output.shape)} and {tuple(y.shape)}"
        )
    return F.binary_cross_entropy_with_logits(output, y.to(output.dtype), reduction="none")


@_LOSSES.add("squared_error", "squared error, for regression")
def squared_error(output: Tensor, y: Tensor) -> Tensor:
    """Predictions and targets (n,) or (n, k); mean over the k numbers of a sample."""
    if output.dim() == y.dim() + 1 and output.shape[-1] == 1:
        output = output.squeeze(-1)
    if output.shape != y.shape:
        # Broadcasting (n, 1) against (n,) would silently compare every pair.
        raise ValueError(
            f"squared error needs predictions of the targets' shape, "
            f"not {tuple(output.shape)} and {tuple(y.shape)}"
        )
    return mean_of_sample((output - y.to(output.dtype)).square(), None)


def _cross_entropy(output: Tensor, y: Tensor, **options: Any) -> Tensor:
    """One value for each element of y; sequences (n, T, V) carry the classes last."""
    if output.dim() == 3:
        # As rows, since a softmax over a dimension in the middle is slow for many words.
        rows = F.cross_entropy(output.flatten(0, 1), y.flatten(), reduction="none", **options)
        return rows.view(y.shape)
    return F.cross_entropy(output, y, reduction="none", **options)


def mean_of_sample(values: Tensor, counted: Tensor | None) -> Tensor:
    """Mean over each sample's own elements, (n, ...) to (n,); uncounted ones are zero already."""
    if values.dim() == 1:
        return values
    values = values.flatten(1)
    if counted is None:
        return values.mean(1)
    return values.sum(1) / counted.flatten(1).sum(1).clamp_min(1)
