"""Rules of torch's dense, embedding and normalisation layers; convolutions have their own file."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from cupola.nn.quantised import QuantisedLinear
from cupola.privacy.persample.rules import (
    GRAM,
    Contribution,
    Dense,
    Factored,
    Gradients,
    Kept,
    Materialised,
    Parameters,
    Room,
    Rule,
    Sums,
    bounded,
    guarded,
    live,
    rule,
    rule_named,
    sizes,
    squares,
    wanted,
)

#: Elements of a transient block of per-sample gradients, where they are made only for their norms.
BLOCK = 4_000_000


def gram_squared(x: Tensor, g: Tensor) -> Tensor:
    """|sum_t g_t x_t'|^2 (n,) from x (n, T, d) and g (n, T, p), without the (p, d) products.

    In float64, with the size of the terms: the diagonals have |x_t|^2 and |g_t|^2.
    """
    x, g = x.double(), g.double()
    inside, outside = torch.bmm(x, x.mT), torch.bmm(g, g.mT)
    own = [bounded(gram.diagonal(dim1=1, dim2=2)) for gram in (inside, outside)]
    additions = x.shape[2] + g.shape[2] + x.shape[1] ** 2
    return guarded((inside * outside).sum((1, 2)), (own[0] * own[1]).sqrt().sum(1), additions)


def product_squared(x: Tensor, g: Tensor) -> Tensor:
    """The same by the products themselves, a few samples at a time."""
    size = max(1, BLOCK // (x.shape[2] * g.shape[2]))
    return torch.cat(
        [
            guarded(
                torch.bmm(b.mT, a).flatten(1).square().sum(1),
                (sizes(a, 2) * sizes(b, 2)).sum(1),
                3 * a.shape[1] + a.shape[2] * b.shape[2],
            )
            for a, b in zip(x.double().split(size), g.double().split(size))
        ]
    )


def prefers_gram(positions: int, inputs: int, outputs: int) -> bool:
    """Whether Gram matrices are the cheaper way to a norm."""
    return GRAM * positions * (inputs + outputs) < inputs * outputs


@rule(nn.Linear, Dense, QuantisedLinear)
class LinearRule(Rule):
    """Inputs (n, d) or sequences (n, ..., d): the gradient is sum_t g_t x_t'.

    For a single position |g x'|^2 = |g|^2 |x|^2 (Goodfellow, 2015).
    """

    def arrange(self, kept: Kept, g: Tensor) -> tuple[Kept, Tensor]:
        (x,) = kept
        if x.dim() == 3:
            return kept, g
        return (x.reshape(len(x), -1, x.shape[-1]),), g.reshape(len(g), -1, g.shape[-1])

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        (x,), names, found = kept, wanted(layer), {}
        if "weight" in names:
            found["weight"] = torch.bmm(g.mT, x)
        if "bias" in names:
            found["bias"] = g.sum(1)
        return found

    def contribution(self, layer: Any, kept: Kept, g: Tensor, room: Room) -> Contribution:
        (x,), names = kept, wanted(layer)
        if "weight" not in names:
            return Materialised(self.gradients(layer, kept, g))
        n, positions, inputs = x.shape
        outputs = g.shape[-1]
        bias = {"bias": g.sum(1)} if "bias" in names else {}
        if positions == 1:
            product = sizes(x, (1, 2)) * sizes(g, (1, 2))
            squared = bounded(product.square() * (1 + (inputs + outputs + 8) * 2.0**-51))  # A = |G|
        elif prefers_gram(positions, inputs, outputs):
            squared = gram_squared(x, g)
        elif (held := room.lend((n, outputs, inputs), g)) is not None:
            return Materialised({"weight": torch.bmm(g.mT, x, out=held)} | bias)
        else:
            squared = product_squared(x, g)
        for value in bias.values():
            squared = squared + squares(value)

        def add(sums: Sums, parameters: Parameters, weights: Tensor) -> None:
            scaled = live(g.double(), weights) * weights.view(-1, 1, 1)
            sums.outer(
                parameters["weight"],
                scaled.flatten(0, 1),
                live(x.double(), weights).flatten(0, 1),
            )
            for name, value in bias.items():
                sums.rows(parameters[name], weights, value)

        return Factored(squared, add)


@rule_named("transformers.pytorch_utils.Conv1D")
class TransposedRule(LinearRule):
    """GPT-2's dense layer: weight (inputs, outputs), so the gradient is sum_t x_t g_t'."""

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        found = super().gradients(layer, kept, g)
        return {name: v.mT if name == "weight" else v for name, v in found.items()}

    def contribution(self, layer: Any, kept: Kept, g: Tensor, room: Room) -> Contribution:
        if "weight" not in wanted(layer):
            return Materialised(self.gradients(layer, kept, g))
        found = super().contribution(layer, kept, g, room)
        if isinstance(found, Materialised):
            return Materialised(
                {n: v.mT if n == "weight" else v for n, v in found.gradients.items()}
            )

        def add(sums: Sums, parameters: Parameters, weights: Tensor) -> None:
            (x,) = kept
            scaled = live(g.double(), weights) * weights.view(-1, 1, 1)
            rows = live(x.double(), weights).flatten(0, 1)
            sums.outer(parameters["weight"], rows, scaled.flatten(0, 1))
            if "bias" in parameters:
                sums.rows(parameters["bias"], weights, g.sum(1))

        return Factored(found.squared, add)


@rule(nn.Embedding)
class EmbeddingRule(Rule):
    """Tokens (n, ...): a sample's gradient has rows only where it has tokens."""

    def arrange(self, kept: Kept, g: Tensor) -> tuple[Kept, Tensor]:
        (x,) = kept
        return (x.reshape(len(x), -1),), g.reshape(len(g), -1, g.shape[-1])

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        tokens, values = _counted(layer, kept[0], g)
        found = g.new_zeros(len(g), layer.num_embeddings, layer.embedding_dim)
        place = tokens[..., None].expand_as(values)
        return {"weight": found.scatter_add_(1, place, values)}

    def contribution(self, layer: Any, kept: Kept, g: Tensor, room: Room) -> Contribution:  # noqa: ARG002
        tokens, values = _counted(layer, kept[0], g)
        n, width = len(g), g.shape[-1]
        sample = torch.arange(n, device=g.device)[:, None] * layer.num_embeddings
        pairs, place = torch.unique(tokens + sample, return_inverse=True)
        rows = g.new_zeros(len(pairs), width).index_add_(
            0, place.view(-1), values.reshape(-1, width)
        )
        owner = pairs // layer.num_embeddings
        squared = torch.zeros(n, dtype=torch.float64, device=g.device)
        squared.index_add_(0, owner, squares(rows))

        def add(sums: Sums, parameters: Parameters, weights: Tensor) -> None:
            own = weights[owner]
            scaled = live(rows.double(), own) * own[:, None]
            sums.total(parameters["weight"]).index_add_(0, pairs % layer.num_embeddings, scaled)

        return Factored(squared, add)


def _counted(layer: nn.Embedding, tokens: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens and gradients (contiguous); padding has no gradient."""
    if layer.padding_idx is not None:
        g = g.masked_fill((tokens == layer.padding_idx)[..., None], 0)
    return tokens, g.contiguous()


def _saved(output: Tensor, node: str) -> tuple[Tensor, Tensor] | None:
    """Mean and 1/std that a normalisation's forward pass saved for its backward pass."""
    function: Any = output.grad_fn
    if function is None or function.name() != node:
        return None
    return function._saved_result1, function._saved_result2


def _per_parameter(layer: Any, scale: Tensor, shift: Tensor) -> Gradients:
    """Gradients of an affine layer's weight and bias, those that are wanted."""
    both = {"weight": scale, "bias": shift}
    return {name: both[name].reshape(-1, *p.shape) for name, p in wanted(layer).items()}


class _ChannelNorm(Rule):
    """y = (x - mean) / std * weight + bias over images (n, C, ...), weight and bias (C,).

    Keeps x and per-row statistics (rows, groups); groups divide the channels evenly.
    """

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        x, mean, scale = kept
        each = g.shape[2] // mean.shape[-1]
        mean, scale = (t.repeat_interleave(each, -1) if each > 1 else t for t in (mean, scale))
        if g.dim() == 3:
            x, g = x[..., None], g[..., None]
        positions = tuple(range(3, g.dim()))
        shift = g.sum(positions)
        product = torch.mul(g, x).sum(positions)  # (n, k, C)
        return _per_parameter(layer, ((product - shift * mean) * scale).sum(1), shift.sum(1))


@rule(nn.GroupNorm)
class GroupNormRule(_ChannelNorm):
    """Group normalisation; layer normalisation of images is one group."""

    def remember(self, layer: Any, x: Tensor, output: Tensor) -> Kept:
        return x, *(
            _saved(output, "NativeGroupNormBackward0") or _stats(x, layer.num_groups, layer.eps)
        )


@rule(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
class InstanceNormRule(_ChannelNorm):
    """One group per channel; without running statistics (see `unsupported`)."""

    def remember(self, layer: _InstanceNorm, x: Tensor, output: Tensor) -> Kept:  # noqa: ARG002
        return x, *_stats(x, x.shape[1], layer.eps)


@rule(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
class FixedBatchNormRule(_ChannelNorm):
    """Batch normalisation in evaluation mode, by statistics that no sample changes."""

    def remember(self, layer: _BatchNorm, x: Tensor, output: Tensor) -> Kept:  # noqa: ARG002
        assert layer.running_mean is not None
        assert layer.running_var is not None
        scale = (layer.running_var + layer.eps).rsqrt()
        return x, *(t.expand(len(x), -1) for t in (layer.running_mean, scale))


def _stats(x: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/std (rows, groups) of each row's groups of channels."""
    variance, mean = torch.var_mean(x.detach().reshape(len(x), groups, -1), -1, correction=0)
    return mean, (variance + eps).rsqrt()


@rule(nn.LayerNorm)
class LayerNormRule(Rule):
    """Normalisation over the last dimensions; weight and bias have their shape."""

    def remember(self, layer: Any, x: Tensor, output: Tensor) -> Kept:
        saved = _saved(output, "NativeLayerNormBackward0")
        if saved is None:
            dims = tuple(range(-len(layer.normalized_shape), 0))
            variance, mean = torch.var_mean(x.detach(), dims, correction=0, keepdim=True)
            saved = mean, (variance + layer.eps).rsqrt()
        return x, *saved

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        x, mean, scale = kept
        normal = (x - mean).mul_(scale)
        size = layer.weight.shape
        rows = (len(g), -1, *size)
        scaled = normal.mul_(g).reshape(rows).sum(1)
        return _per_parameter(layer, scaled, g.reshape(rows).sum(1))


@rule(nn.RMSNorm)
class RMSNormRule(Rule):
    """x / root mean square over the last dimensions, times weight."""

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        (x,) = kept
        dims = tuple(range(-len(layer.normalized_shape), 0))
        eps = torch.finfo(x.dtype).eps if layer.eps is None else layer.eps
        normal = x * (x.square().mean(dims, keepdim=True) + eps).rsqrt()
        return {"weight": (normal * g).reshape(len(g), -1, *layer.weight.shape).sum(1)}


@rule(nn.PReLU)
class PReLURule(Rule):
    """max(0, x) + weight min(0, x), with one weight or one per channel (dimension 1)."""

    def gradients(self, layer: Any, kept: Kept, g: Tensor) -> Gradients:
        (x,) = kept
        product = x.clamp_max(0) * g
        if layer.weight.numel() == 1:
            return {"weight": product.flatten(1).sum(1, keepdim=True)}
        channels = product.reshape(*product.shape[:2], layer.weight.numel(), -1)
        return {"weight": channels.sum((1, 3))}
