"""Convolutions in one, two and three dimensions.

The per-sample gradient of a weight is the product of the sample's windows (what the kernel sees at
each position) and its output gradient. Within a micro-batch it is either kept until the clipping
weights are known (then the clipped sum is a vector-matrix product), or, where there is no room for
it, made for its norm only and the clipped sum is one weight gradient of the whole micro-batch, with
every sample's share scaled. The second way has factors only: it is in float64, and its norms count
the size of the terms (see `rules`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.privacy.persample.rules import (
    GRAM,
    MOST_TERMS,
    Contribution,
    Factored,
    Gradients,
    Kept,
    Materialised,
    Parameters,
    Room,
    Rule,
    Sums,
    bounded,
    combine,
    guarded,
    live,
    rule,
    sizes,
    squares,
    wanted,
)

#: Weights with fewer numbers are found by one grouped convolution. Where windows begin to pay is
#: not settled: on one thread from about 10,000 on.
NUMBERS = 60_000
#: Numbers in a block of windows, so that it stays in the cache.
WINDOWS = 2**21


def prefers_channels_last(module: nn.Module) -> bool:
    """Whether images had better come with channels last: where nearly all weights are windows'.

    Kernel-normalised convolutions do not count: measured, they gain nothing (0.96 to 1.02).
    """
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    weights = sum(layer.weight.numel() for layer in layers)
    return 0.9 * weights < sum(layer.weight.numel() for layer in layers if by_windows(layer))


@contextmanager
def weights_channels_last(module: nn.Module) -> Iterator[None]:
    """Weights in the order that images with channels last want; else every call turns them."""
    weights = [layer.weight for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    before = [weight.data for weight in weights]
    try:
        for weight, data in zip(weights, before):
            weight.data = data.contiguous(memory_format=torch.channels_last)
        yield
    finally:
        for weight, data in zip(weights, before):
            weight.data = data


class Windows(NamedTuple):
    """What a convolution's gradients are made of: sum_p (a_p - c_p) g_p' over windows a of x.

    x (n, k, C, ...) and g (n, k, O, ...); padding: that is left to the convolution. centre (n, k,
    1, ...): c, numbers taken off all of a window; None: none.
    """

    x: Tensor
    g: Tensor
    padding: tuple[int, ...]
    centre: Tensor | None = None


@rule(nn.Conv1d, nn.Conv2d, nn.Conv3d)
class ConvolutionRule(Rule):
    """Any stride, padding, dilation, groups and padding mode; weight and bias."""

    def windows(self, layer: Any, kept: Kept, g: Tensor) -> Windows:
        """Input and output gradient as the weight sees them."""
        x, padding = _padded(layer, kept[0])
        return Windows(x, g, padding)

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        names, found = wanted(layer), {}
        if "weight" in names:
            found["weight"] = _weight_gradients(layer, self.windows(layer, kept, g))
        if "bias" in names:
            found["bias"] = over_places(g)
        return found

    def contribution(self, layer: Any, kept: Kept, g: Tensor, room: Room) -> Contribution:
        names = wanted(layer)
        if "weight" not in names:
            return Materialised(self.gradients(layer, kept, g))
        seen = self.windows(layer, kept, g)
        bias = {"bias": over_places(g)} if "bias" in names else {}
        if _prefers_gram(layer, seen):
            squared = _gram(layer, seen)
        elif (
            by_windows(layer)
            and (held := room.lend((len(g), *_product_shape(layer)), g)) is not None
        ):
            products = _write_products(layer, seen, held)
            if seen.centre is not None:
                products -= _shared(seen.g, seen.centre).unsqueeze(1)
            return Products(Materialised({"weight": products} | bias), layer)
        elif layer.groups > 1 or (not by_windows(layer) and room.take(len(g), layer.weight)):
            return Materialised({"weight": _weight_gradients(layer, seen)} | bias)
        else:
            squared = _product_squares(layer, seen)
        for value in bias.values():
            squared = squared + squares(value)

        def add(sums: Sums, parameters: Parameters, weights: Tensor) -> None:
            for name, value in bias.items():
                sums.rows(parameters[name], weights, value)
            _add_products(sums, parameters["weight"], layer, seen, weights)

        return Factored(squared, add)


class Products(NamedTuple):
    """Per-sample gradients whose weight is as `_write_products` has it; only sums are turned."""

    gradients: Materialised
    layer: Any

    @property
    def squared(self) -> Tensor:
        return self.gradients.squared

    @property
    def numbers(self) -> Sequence[Tensor]:
        return self.gradients.numbers

    def add(self, sums: Sums, parameters: Parameters, weights: Tensor) -> None:
        for name, rows in self.gradients.gradients.items():
            if name == "weight":
                combine(_as_products(sums, parameters[name], self.layer).view(-1), weights, rows)
            else:
                sums.rows(parameters[name], weights, rows)


def _as_products(sums: Sums, weight: nn.Parameter, layer: Any) -> Tensor:
    """The sum of a weight, in the order of `_write_products`: (window, O)."""

    def zeros() -> Tensor:
        made = torch.zeros(1, *_product_shape(layer), dtype=torch.float64, device=weight.device)
        return _as_weights(layer, made)[0]

    return sums.total(weight, zeros).movedim((0, 1), (-1, -2)).view(_product_shape(layer))


def over_places(g: Tensor) -> Tensor:
    """(n, k, C, ...) summed over all but samples and channels: the gradient of a bias."""
    return g.sum((1, *range(3, g.dim())))


def by_windows(layer: Any) -> bool:
    """Whether per-sample gradients of the weight are products of windows (`_write_products`)."""
    return layer.groups == 1 and layer.weight.numel() >= NUMBERS


def _product_shape(layer: Any) -> tuple[int, int]:
    """(window, O), one sample's weight gradient as `_write_products` gives it."""
    return layer.weight[0].numel(), layer.weight.shape[0]


def _write_products(layer: Any, seen: Windows, out: Tensor) -> Tensor:
    """Per-sample weight gradients without their centre, written to out (n, window, O)."""
    start = 0
    for parts, gradients in _blocks(layer, *seen[:3], whole=layer.stride[0] > 1):
        own = out[start : start + len(gradients)].unflatten(1, (len(parts), -1))
        for i, windows in enumerate(parts):
            product = own[:, i]
            torch.bmm(windows[:, 0].mT, gradients[:, 0], out=product)
            for a, b in zip(windows.unbind(1)[1:], gradients.unbind(1)[1:]):  # further rows
                product.baddbmm_(a.mT, b)
        start += len(gradients)
    return out


def _blocks(
    layer: Any, x: Tensor, g: Tensor, padding: tuple[int, ...], *, whole: bool
) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Windows, in parts (few, k, places, part), and output gradients (few, k, places, O), few
    samples at a time; they are overwritten by the next block's.

    x (n, k, C, ...), g (n, k, O, ...). A window counts its numbers by place first, then by channel.
    Unless they are wanted whole, what lies in the first dimension of the image is not copied: one
    strip of the image gives as many parts of windows as the kernel is high, each further down.
    """
    high = layer.kernel_size[0]
    k, outputs, tall, *wide = g.shape[1:]
    if whole:
        parts, steps = [slice(None)], tall
        size = layer.weight[0].numel()
    else:
        apart = layer.dilation[0]
        parts = [slice(apart * i, apart * i + tall) for i in range(high)]
        steps, size = x.shape[3] + 2 * padding[0], layer.weight[0, :, 0].numel()
    shape = (k, steps, math.prod(wide), size)
    few = 1 << max(WINDOWS // math.prod(shape), 1).bit_length() - 1  # processors share it evenly
    space = g.new_empty(min(few, len(g)), *shape)  # one for all blocks: it is in the cache then
    for a, b in zip(x.split(few), g.split(few)):
        strips = space[: len(a)]
        _copy_windows(layer, a, padding, strips, whole=whole)
        yield (
            [strips[:, :, part].flatten(2, 3) for part in parts],
            b.movedim(2, -1).reshape(len(b), k, -1, outputs),
        )


def _copy_windows(
    layer: Any, x: Tensor, padding: tuple[int, ...], out: Tensor, *, whole: bool
) -> None:
    """All windows of x (n, k, C, ...) to out (n, k, rows, places, window), or, not whole, strips:
    windows that are one row high, for every row of the image."""
    channels = x.shape[2]
    x = x.flatten(0, 1).movedim(1, -1)  # channels last: they are copied together
    if any(padding):
        sizes = [s + 2 * p for s, p in zip(x.shape[1:], padding)]
        around = x.new_zeros(len(x), *sizes, channels)
        around[(slice(None), *(slice(p, p + s) for s, p in zip(x.shape[1:], padding)))] = x
        x = around
    x = x.contiguous()
    kernel = layer.kernel_size if whole else (1, *layer.kernel_size[1:])
    each, *steps, one = x.stride()
    spans = [d * (w - 1) + 1 for d, w in zip(layer.dilation, kernel)]
    places = [(s - w) // t + 1 for s, w, t in zip(x.shape[1:], spans, layer.stride)]
    moves = [a * t for a, t in zip(steps, layer.stride)]
    within = [a * d for a, d in zip(steps, layer.dilation)]
    view = x.as_strided((len(x), *places, *kernel, channels), (each, *moves, *within, one))
    out.view(view.shape).copy_(view)


def _as_weights(layer: Any, products: Tensor) -> Tensor:
    """(n, window, O) as (n, *weight.shape), without a copy."""
    outputs, channels, *kernel = layer.weight.shape
    return products.view(-1, *kernel, channels, outputs).movedim((-1, -2), (1, 2))


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
    return found[1].reshape(n, *weight.shape)


def _weight_gradients(layer: Any, seen: Windows) -> Tensor:
    """Per-sample gradients of the weight, (n, *weight.shape)."""
    if by_windows(layer):
        products = seen.g.new_empty(len(seen.g), *_product_shape(layer))
        found = _as_weights(layer, _write_products(layer, seen, products))
    else:
        found = _grouped(layer, seen.x, seen.g, seen.padding)
    if seen.centre is None:
        return found
    filters = _shared(seen.g, seen.centre)
    return found - filters.view(*filters.shape, *[1] * (layer.weight.dim() - 1))


def _shared(g: Tensor, centre: Tensor) -> Tensor:
    """sum_p g_p c_p, (n, O), for g (n, k, O, ...) and c (n, k, 1, ...)."""
    return torch.matmul(g.flatten(3), centre.flatten(3).mT).sum((1, 3))


def _centred(layer: Any, seen: Windows) -> Iterator[tuple[Tensor, Tensor]]:
    """Windows less their centre (few, k places, window) and gradients (few, k places, O), float64,
    few samples at a time."""
    x, g, padding, centre = seen
    start = 0
    for (windows,), own in _blocks(layer, x, g.double(), padding, whole=True):
        few = len(own)
        if centre is not None:
            windows -= centre[start : start + few].flatten(2).unsqueeze(-1)
        start += few
        yield windows.flatten(1, 2), own.flatten(1, 2)


def _product_squares(layer: Any, seen: Windows) -> Tensor:
    """Squared norms as by `_gram`, from per-sample products in float64, a few samples at a time."""
    found = []
    for a, b in _centred(layer, seen):
        squared = torch.bmm(a.mT, b).flatten(1).square().sum(1)
        terms = (sizes(a, 2) * sizes(b, 2)).sum(1)
        found.append(guarded(squared, terms, 4 * a.shape[1] + layer.weight.numel()))
    return torch.cat(found)


def _add_products(
    sums: Sums, weight: nn.Parameter, layer: Any, seen: Windows, weights: Tensor
) -> None:
    """Add the weighted sum of sum_p (a_p - c_p) g_p' in float64."""
    x, g, padding, centre = seen
    scaled = live(g.double(), weights) * weights.view(-1, *[1] * (g.dim() - 1))
    own = None if centre is None else live(centre, weights)
    alive = Windows(live(x, weights), scaled, padding, own)
    total = _as_products(sums, weight, layer)
    for blocks in _centred(layer, alive):
        for a, b in zip(*(t.flatten(0, 1).split(MOST_TERMS) for t in blocks)):
            total += a.mT @ b


def _prefers_gram(layer: Any, seen: Windows) -> bool:
    """Whether Gram matrices are the cheaper way: few positions, many channels."""
    x, g = seen[:2]
    pixels, places = x[0, :, 0].numel(), g[0, :, 0].numel()
    products = places * layer.weight.numel()
    grams = pixels**2 * x.shape[2] + places**2 * g.shape[2]
    return layer.groups == 1 and 2 * GRAM * grams < products


def _gram(layer: Any, seen: Windows) -> Tensor:
    """Squared norms |sum_p a_p g_p'|^2 = sum_pq (a_p.a_q)(g_p.g_q) of windows a and gradients g.

    a_p.a_q is the sum of products of pixels over the places of a window; a sum along one dimension
    of the image after the other. In float64, guarded by the size of the terms.
    """
    x, g, padding, centre = seen
    inside, outside = _inner(x), _inner(g)  # (n, k, ..., k, ...)
    dims = len(padding)
    both = [p for pad in reversed(padding) for p in (pad, pad)]
    inside = F.pad(inside, [*both, 0, 0, *both])
    totals = None if centre is None else F.pad(x.double().sum(2), both)
    for i, places in enumerate(g.shape[3:]):
        step, apart = layer.stride[i], layer.dilation[i]
        moved = [
            slice(apart * j, apart * j + step * (places - 1) + 1, step)
            for j in range(layer.kernel_size[i])
        ]
        ahead, between = (slice(None),) * (2 + i), (slice(None),) * dims
        inside = reduce(torch.add, [inside[(*ahead, part, *between, part)] for part in moved])
        if totals is not None:
            totals = reduce(torch.add, [totals[(*ahead, part)] for part in moved])
    square = (len(g), *2 * (math.prod(g.shape[1:2] + g.shape[3:]),))
    length = rough = bounded(inside.reshape(square).diagonal(dim1=1, dim2=2)).sqrt()
    if centre is not None and totals is not None:
        # (a - c).(b - d) = a.b - c sum(b) - d sum(a) + size c d
        own = centre.double().flatten(1)
        size = layer.weight[0].numel()
        crossed = own[:, :, None] * (totals.flatten(1) - size / 2 * own)[:, None]
        inside = inside - (crossed + crossed.mT).view(inside.shape)
        rough = length + math.sqrt(size) * bounded(own.square()).sqrt()
        # What cancelled in the diagonal is at most this wrong, and counts.
        lost = size * 2.0**-48 * rough.square()
        length = (inside.reshape(square).diagonal(dim1=1, dim2=2).clamp_min(0) + lost).sqrt()
    across = bounded(outside.reshape(square).diagonal(dim1=1, dim2=2)).sqrt()
    additions = 4 * (x.shape[2] + layer.weight[0].numel() + g.shape[2]) + square[1] ** 2
    squared, terms = (inside * outside).flatten(1).sum(1), (length * across).sum(1)
    return guarded(squared, terms, additions, (rough * across).sum(1))


def _inner(x: Tensor) -> Tensor:
    """Products of all pairs of pixels of a sample, (n, k, ..., k, ...) from x (n, k, C, ...)."""
    pixels = x.movedim(2, -1).flatten(1, -2).double()
    size = (x.shape[1], *x.shape[3:])
    return torch.bmm(pixels, pixels.mT).view(len(x), *size, *size)


def _padded(layer: Any, x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """x (n, k, C, ...) and the padding that is left to the convolution itself."""
    none = (0,) * len(layer.stride)
    if layer.padding_mode == "zeros" and not isinstance(layer.padding, str):
        return x, layer.padding
    around = layer._reversed_padding_repeated_twice
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    padded = F.pad(x.flatten(0, 1), around, mode=mode)
    return padded.reshape(*x.shape[:2], *padded.shape[1:]), none
