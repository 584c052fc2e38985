"""Normalisation layers for images by name; every model takes its layers from `norm`.

Kernel normalisation is no layer between others but part of a convolution: see `kernelnorm`, and
`Layers` in `models.blocks`, which places both.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.nn.kernelnorm import KernelNorm2d

#: none; layer: one group over (C, H, W); group: GroupNorm by group size; instance: each channel;
#: positional: the channels at each place; local-context: two groups, in a window around each place;
#: kernel: the windows that convolutions see; batch: BatchNorm.
Norm = Literal[
    "none", "layer", "group", "instance", "positional", "local-context", "kernel", "batch"
]


def norm(
    kind: Norm, channels: int, group_size: int | None = 32, *, groups: int | None = None
) -> nn.Module:
    """Normalisation of images (n, channels, H, W), with a learnt scale and shift per channel.

    group_size: channels per group (GroupNorm only); where it does not divide the channels, the
    largest smaller size that does. groups: their number instead.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "group":
        wanted = (group_size or 32) if groups is None else max(1, channels // groups)
        size = next(s for s in range(min(wanted, channels), 0, -1) if channels % s == 0)
        return nn.GroupNorm(channels // size, channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels)
    if kind == "instance":
        return nn.InstanceNorm2d(channels, affine=True)
    if kind == "positional":
        return PositionalNorm(channels)
    if kind == "local-context":
        return LocalContextNorm(channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    if kind == "kernel":
        raise PlanError(
            "model.norm = 'kernel' normalises what convolutions see; it is no layer of its own"
        )
    raise PlanError(f"model.norm = {kind!r} is not known; there are: {', '.join(get_args(Norm))}")


class Affine(nn.Module):
    """A learnt scale, and a shift unless told otherwise, for every channel of (n, C, ...)."""

    def __init__(self, channels: int, *, scale: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((channels,), scale))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.dim() - 2))
        weight = self.weight.view(shape)
        return x * weight if self.bias is None else torch.addcmul(self.bias.view(shape), x, weight)


class PositionalNorm(nn.Sequential):
    """Over the channels at each place (Li et al., 2019), with a learnt scale and shift."""

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__(KernelNorm2d(1, dropout=0.0, eps=eps), Affine(channels))


class LocalContextNorm(nn.Module):
    """Groups of channels in a window around each place (Ortiz et al., 2020).

    Windows are cut at the border; where they hold the whole image this is GroupNorm.
    """

    def __init__(
        self, channels: int, groups: int = 2, window: int = 227, eps: float = 1e-5
    ) -> None:
        super().__init__()
        self.groups = groups if channels % groups == 0 else 1
        self.window, self.eps = window, eps
        self.affine = Affine(channels)

    def forward(self, x: Tensor) -> Tensor:
        u = x.unflatten(1, (self.groups, -1))
        level = u.mean((2, 3, 4), keepdim=True)  # near all values, so that nothing large cancels
        u = u - level
        means, squares = u.mean(2), u.square().mean(2)  # (n, groups, H, W)
        sizes = [min(self.window, 2 * s - 1) // 2 * 2 + 1 for s in x.shape[-2:]]
        if all(w >= 2 * s - 1 for w, s in zip(sizes, x.shape[-2:])):
            means, squares = (t.mean((2, 3), keepdim=True) for t in (means, squares))
        else:
            means, squares = (_around(t, sizes) for t in (means, squares))
        scale = (squares - means.square()).clamp_min(0).add(self.eps).rsqrt()
        normal = (u - means.unsqueeze(2)) * scale.unsqueeze(2)
        return self.affine(normal.flatten(1, 2))


def _around(maps: Tensor, sizes: list[int]) -> Tensor:
    """Means over windows around each place, without what lies outside."""
    padding = [s // 2 for s in sizes]
    ones = maps.new_ones(1, 1, *maps.shape[2:])

    def sums(t: Tensor) -> Tensor:
        for dim, (size, side) in enumerate(zip(sizes, padding), 2):  # by differences of sums
            around = F.pad(t.movedim(dim, -1), (side + 1, side)).cumsum(-1)
            t = (around[..., size:] - around[..., :-size]).movedim(-1, dim)
        return t

    return sums(maps) / sums(ones)
