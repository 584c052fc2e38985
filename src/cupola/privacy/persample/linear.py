"""Clipped sums for linear models at many sites at once, in closed form.

With one linear layer a sample's gradient is the outer product of its output's gradient g and its
input with a 1 for the bias, so |gradient|^2 = |g|^2 (|x|^2 + 1). Clipping scales g, and a site's
sum is one matrix product: no gradient of a single sample is ever made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from cupola.errors import PlanError

LinearLoss = Literal["cross_entropy", "squared_error"]


def _cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return torch.softmax(output, -1).sub_(target)


def _squared_error(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).mul_(2 / output.shape[-1])


#: d loss / d output; both (S, B, K). The squared error of a sample is the mean over its K numbers.
_DERIVATIVES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"cross_entropy": _cross_entropy, "squared_error": _squared_error}
)


@torch.no_grad()
def clipped_sums(
    weights: Tensor,
    x: Tensor,
    targets: Tensor,
    mask: Tensor,
    clip: float,
    loss: LinearLoss = "cross_entropy",
) -> tuple[Tensor, Tensor]:
    """Sums of clipped gradients (S, K, d + 1), and norms before clipping (S, B).

    weights: (S, K, d + 1), one model per site, the bias in the last column.
    x: inputs (S, B, d). targets: (S, B, K), one-hot classes (or probabilities), or numbers.
    mask: (S, B), True for samples that count; the others, whatever they hold, add nothing and have
        norm 0. A sample whose gradient is not finite adds nothing either.
    clip: L2 norm over weights and bias together; math.inf clips nothing.

    Adding or removing one sample changes its site's sum by at most clip, up to rounding.
    """
    if not clip > 0:
        raise PlanError(f"clip = {clip}: the norm to clip to must be positive")
    mask = mask.bool()
    # Zeros, not products with zero: what lies under the mask may be anything.
    x = x.masked_fill(~mask[..., None], 0)
    output = torch.baddbmm(weights[:, None, :, -1], x, weights[..., :-1].mT)
    g = _DERIVATIVES[loss](output, targets).masked_fill_(~mask[..., None], 0)
    norms = (g.square().sum(-1) * (x.square().sum(-1) + 1)).sqrt_()
    if clip < math.inf:
        g *= (clip / norms).clamp_max_(1)[..., None]  # norm 0: clip / 0 is infinite, so 1
    if not math.isfinite(float(norms.sum())):
        wrong = ~norms.isfinite()[..., None]
        g, x = g.masked_fill_(wrong, 0), x.masked_fill(wrong, 0)
    return torch.cat([torch.bmm(g.mT, x), g.sum(1)[..., None]], -1), norms
