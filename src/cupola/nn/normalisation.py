"""Normalisation layers for images by name; every model takes its layers from `norm`."""

from __future__ import annotations

from typing import Literal

from torch import nn

from cupola.errors import PlanError

#: none; group: GroupNorm by group size; layer: one group over (C, H, W); batch: BatchNorm.
Norm = Literal["none", "group", "layer", "batch"]


def norm(kind: Norm, channels: int, group_size: int = 32) -> nn.Module:
    """Normalisation of images (n, channels, H, W), with a learnt scale and shift per channel.

    group_size: channels per group (GroupNorm only); where it does not divide the channels, the
    largest smaller size that does.
    """
    if kind == "none":
        return nn.Identity()
    if kind == "group":
        size = next(s for s in range(min(group_size, channels), 0, -1) if channels % s == 0)
        return nn.GroupNorm(channels // size, channels)
    if kind == "layer":
        return nn.GroupNorm(1, channels)
    if kind == "batch":
        return nn.BatchNorm2d(channels)
    raise PlanError(f"model.norm = {kind!r} is not known; there are: none, group, layer, batch")
