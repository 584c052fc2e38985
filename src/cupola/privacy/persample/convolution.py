"""Convolutions in one, two and three dimensions.

The per-sample gradient of a weight is the convolution's own weight gradient on that sample. Within
a micro-batch it is either kept until the clipping weights are known (then the clipped sum is a
vector-matrix product), or, where there is no room for it, made for its norm only and the clipped
sum is one weight gradient of the whole micro-batch, with every sample's share scaled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.privacy.persample.layers import gram_squared, prefers_gram
from cupola.privacy.persample.rules import (
    Contribution,
    Factored,
    Gradients,
    Kept,
    Materialised,
    Room,
    Rule,
    rule,
    wanted,
)

#: Weights with more numbers are computed sample by sample: a batched call would leave the cache.
LARGE = 60_000


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule(Rule):
    """Any stride, padding, dilation, groups and padding mode; weight and bias."""

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        names, found = wanted(layer), {}
        if "weight" in names:
            x, padding = _padded(layer, kept[0])
            found["weight"] = weight_gradients(layer, x, g, padding)
        if "bias" in names:
            found["bias"] = g.flatten(3).sum((1, 3))
        return found

    def contribution(self, layer: Any, kept: Kept, g: Tensor, room: Room) -> Contribution:
        names = wanted(layer)
        if "weight" not in names:
            return Materialised(self.gradients(layer, kept, g))
        x, padding = _padded(layer, kept[0])
        positions = g[0, :, 0].numel()
        inputs, outputs = layer.weight[0].numel(), layer.weight.shape[0]
        plane = layer.groups == 1 and g.dim() == 5
        if plane and prefers_gram(2 * positions, inputs, outputs, g.device):
            squared = _gram(layer, x, g, padding)
        elif room.take(len(g), layer.weight):
            return Materialised(self.gradients(layer, kept, g))
        else:
            each = _one_by_one(layer, x, g, padding)
            squared = torch.stack([part.square().sum() for part in each])
        if "bias" in names:
            squared = squared + g.flatten(3).sum((1, 3)).square().sum(1)

        def weighted(weights: Tensor) -> Gradients:
            scaled = g * weights.view(-1, *[1] * (g.dim() - 1))
            found = {
                "weight": _weight_gradient(layer, x.flatten(0, 1), scaled.flatten(0, 1), padding)
            }
            if "bias" in names:
                found["bias"] = scaled.flatten(3).sum((0, 1, 3))
            return found

        return Factored(squared, weighted)


def weight_gradients(layer: Any, x: Tensor, g: Tensor, padding: tuple[int, ...]) -> Tensor:
    """Per-sample weight gradients (n, *weight.shape) from x (n, k, C, ...) and g (n, k, O, ...)."""
    if layer.weight.numel() < LARGE:
        return _grouped(layer, x, g, padding)
    found = g.new_empty(len(g), *layer.weight.shape)
    for row, part in zip(found, _one_by_one(layer, x, g, padding)):
        row.copy_(part)
    return found


def _grouped(layer: Any, x: Tensor, g: Tensor, padding: tuple[int, ...]) -> Tensor:
    """All samples at once, as one convolution in which every sample is a group of channels."""
    n, k = g.shape[:2]
    if k > 1:  # copies stay the batch of the grouped convolution
        x, g = x.transpose(0, 1), g.transpose(0, 1)
    x, g = (t.reshape(k, -1, *t.shape[3:]) for t in (x, g))
    weight = layer.weight
    shape = (n * weight.shape[0], *weight.shape[1:])
    # Only the shape of the weight matters for its gradient.
    found = torch.ops.aten.convolution_backward(
        g, x, weight.new_empty(shape), None, layer.stride, padding, layer.dilation,
        False, [0] * len(padding), n * layer.groups, [False, True, False],
    )  # fmt: skip
    return found[1].view(n, *weight.shape)


def _one_by_one(layer: Any, x: Tensor, g: Tensor, padding: tuple[int, ...]) -> Iterator[Tensor]:
    return (_weight_gradient(layer, a, b, padding) for a, b in zip(x, g))


def _weight_gradient(layer: Any, x: Tensor, g: Tensor, padding: tuple[int, ...]) -> Tensor:
    """The weight gradient of a batch, x (rows, C, ...) and g (rows, O, ...)."""
    found = torch.ops.aten.convolution_backward(
        g, x, layer.weight.detach(), None, layer.stride, padding, layer.dilation,
        False, [0] * len(padding), layer.groups, [False, True, False],
    )  # fmt: skip
    return found[1]


def _gram(layer: Any, x: Tensor, g: Tensor, padding: tuple[int, ...]) -> Tensor:
    """Squared norms by Gram matrices of the windows; for few positions and many channels."""
    n, k = g.shape[:2]
    windows = F.unfold(x.flatten(0, 1), layer.kernel_size, layer.dilation, padding, layer.stride)
    a = windows.view(n, k, *windows.shape[1:]).mT.flatten(1, 2)  # (n, k * positions, C * window)
    b = g.flatten(3).mT.flatten(1, 2)
    return gram_squared(a, b).to(g.dtype)


def _padded(layer: Any, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """x (n, k, C, ...) and the padding that is left to the convolution itself."""
    none = (0,) * len(layer.stride)
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return x, layer.padding
    around = layer._reversed_padding_repeated_twice
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(x.flatten(0, 1), around, mode=mode)
    return padded.view(*x.shape[:2], *padded.shape[1:]), none
