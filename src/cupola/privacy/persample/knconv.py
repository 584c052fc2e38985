"""Kernel-normalised convolutions, and the scale and shift of local normalisations.

With U the windows, mu and s the mean and 1/std that the forward pass used (dropout included), the
gradient of a KNConv's weight is the sum over places of g s (U - mu): a convolution's gradient for
input x and output gradient g s, minus the same number, sum(g s mu), for every weight of a filter.
KernelNorm has no parameters. `register_with_opacus` teaches Opacus the same.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cupola.nn.kernelnorm import KNConv, KNConv1d, KNConv2d, KNConv3d
from cupola.nn.normalisation import Affine
from cupola.privacy.persample.convolution import ConvolutionRule, Windows, over_places
from cupola.privacy.persample.rules import Gradients, Kept, Rule, rule, wanted
from cupola.privacy.persample.tape import NotCoveredError


@rule(KNConv1d, KNConv2d, KNConv3d)
class KNConvRule(ConvolutionRule):
    """Weight and bias; keeps the input, mean and 1/std of every window."""

    def remember(self, layer: Any, x: Tensor, output: Tensor) -> Kept:  # noqa: ARG002
        saved = _saved(output)
        if saved is None:
            raise NotCoveredError("a KNConv with a mask for every window does not keep its windows")
        return x, *saved

    def windows(self, layer: KNConv, kept: Kept, g: Tensor) -> Windows:
        """Centred at mu: x with the padding that a convolution cannot add, and g s."""
        x, mu, scale = kept
        if layer.around:
            padded = layer.surrounded(x.flatten(0, 1))
            x = padded.reshape(*x.shape[:2], *padded.shape[1:])
        return Windows(x, g * scale.to(g.dtype), layer.geometry.padding, mu.to(g.dtype))


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
