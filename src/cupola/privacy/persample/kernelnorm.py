"""Kernel-normalised convolutions, and the scale and shift of local normalisations.

With U the windows, mu and s the mean and 1/std that the forward pass used (dropout included), the
gradient of a KNConv's weight is the sum over places of g s (U - mu): a convolution's gradient for
input x and output gradient g s, minus the same number, sum(g s mu), for every weight of a filter.
KernelNorm has no parameters. `register_with_opacus` teaches Opacus the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cupola.nn.kernelnorm import KNConv, KNConv1d, KNConv2d, KNConv3d
from cupola.nn.normalisation import Affine
from cupola.privacy.persample.convolution import (
    ConvolutionRule,
    Products,
    batch_gradient,
    by_windows,
    gram,
    over_places,
    prefers_gram,
    product_shape,
    write_products,
)
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
from cupola.privacy.persample.tape import NotCoveredError

#: Numbers of per-sample gradients at a time, where they are made only for their norms.
BLOCK = 4_000_000
_CONVOLUTION = ConvolutionRule()


@rule(KNConv1d, KNConv2d, KNConv3d)
class KNConvRule(Rule):
    """Weight and bias; keeps the input, mean and 1/std of every window."""

    def keep(
        self, layer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> Kept:
        (x,) = super().keep(layer, args, kwargs, output)
        saved = _saved(output)
        if saved is None:
            raise NotCoveredError("a KNConv with a mask for every window does not keep its windows")
        return x, *saved

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        found = {}
        if "weight" in wanted(layer):
            x, scaled, shared = _prepared(layer, kept, g)
            found["weight"] = _weights(layer, x, scaled, shared)
        if "bias" in wanted(layer):
            found["bias"] = over_places(g)
        return found

    def contribution(self, layer: Any, kept: Kept, g: Tensor, room: Room) -> Contribution:
        names = wanted(layer)
        bias = {"bias": over_places(g)} if "bias" in names else {}
        if "weight" not in names:
            return Materialised(bias)
        x, scaled, shared = _prepared(layer, kept, g)
        padding = tuple(layer.padding)
        squared = None
        if prefers_gram(layer, x, scaled):
            squared = gram(layer, x, scaled, padding, kept[1])
        elif not by_windows(layer):
            if room.take(len(g), layer.weight):
                return Materialised({"weight": _weights(layer, x, scaled, shared)} | bias)
        elif (held := room.lend((len(g), *product_shape(layer)), g)) is not None:
            products = write_products(layer, x, scaled, padding, held)
            return Products(
                Materialised({"weight": products.sub_(shared.unsqueeze(1))} | bias), layer
            )
        if squared is None:
            few = max(1, BLOCK // layer.weight.numel())
            pieces = zip(x.split(few), scaled.split(few), shared.split(few))
            squared = torch.cat(
                [_weights(layer, *piece).flatten(1).square().sum(1) for piece in pieces]
            )
        for value in bias.values():
            squared = squared + value.square().sum(1)

        def weighted(weights: Tensor) -> Gradients:
            found = {name: weights @ value for name, value in bias.items()}
            own = scaled * weights.view(-1, *[1] * (g.dim() - 1))
            total = batch_gradient(layer, x, own, padding)
            return found | {"weight": total - _filters(layer, weights @ shared)}

        return Factored(squared, weighted)


@rule(Affine)
class AffineRule(Rule):
    """weight x + bias per channel of (n, C, ...)."""

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        both = {"weight": lambda: over_places(kept[0] * g), "bias": lambda: over_places(g)}
        return {name: both[name]() for name in wanted(layer)}


def _saved(output: Tensor) -> tuple[Tensor, Tensor] | None:
    """Mean and 1/std of every window, as the forward pass kept them."""
    node: Any = output.grad_fn
    if node is None or node.name() != "AdjustedFunctionBackward":
        return None
    *_, mu, scale, _ = node.saved_tensors
    return mu, scale


def _prepared(layer: KNConv, kept: Kept, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x with uneven padding added, g s, and sum(g s mu) (n, O); all else (n, k, ...)."""
    x, mu, scale = kept
    if layer.around:
        padded = F.pad(x.flatten(0, 1), layer.around)
        x = padded.reshape(*x.shape[:2], *padded.shape[1:])
    scaled = g * scale.to(g.dtype)
    shared = torch.matmul(scaled.flatten(3), mu.to(g.dtype).flatten(3).mT)  # (n, k, O, 1)
    return x, scaled, shared.sum((1, 3))


def _weights(layer: KNConv, x: Tensor, scaled: Tensor, shared: Tensor) -> Tensor:
    """Per-sample gradients (n, *weight.shape)."""
    found = _CONVOLUTION.gradients(layer, (x,), scaled)["weight"]
    return found - _filters(layer, shared)


def _filters(layer: KNConv, values: Tensor) -> Tensor:
    """(..., O) next to weights (..., O, C, *kernel)."""
    return values.view(*values.shape, *[1] * (layer.weight.dim() - 1))


def register_with_opacus() -> None:
    """Let Opacus compute per-sample gradients of KNConv; call it before wrapping a model.

    From then on layers note the statistics of every call with gradients, until its backward pass.
    """
    from opacus.grad_sample import register_grad_sampler

    def sampler(layer: KNConv, activations: list[Tensor], g: Tensor) -> dict[Any, Tensor]:
        if not layer.noted:
            raise NotCoveredError("Opacus saw no statistics of this KNConv (masks per window?)")
        mu, scale = layer.noted.pop()
        kept = tuple(t.unsqueeze(1) for t in (activations[0], mu, scale))
        found = KNConvRule().gradients(layer, kept, g.unsqueeze(1))
        return {parameter: found[name] for name, parameter in wanted(layer).items()}

    for kind in (KNConv1d, KNConv2d, KNConv3d):
        kind.notes = True
        register_grad_sampler(kind)(sampler)
