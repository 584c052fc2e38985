"""The size of the target image within the source's input, trained with the border (AutoVP, Tsao et
al. 2024).

    side = middle + half scale / sqrt(1 + scale^2)      in pixels, within middle +- half
    x~   = c R(x) + (1 - c) unit tanh(Theta)

middle +- half: from `least` to the source's size. R: the image resized to side x side, bilinearly,
in the middle of the source's input; c: how much of each pixel it covers, 0 to 1. Both follow the
side by fractions of a pixel, so the side has a gradient. With whole pixels on either side of the
image this is what `Placement` and `Border` compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn.reprogram import Begin, Border, Pad, Placement

if TYPE_CHECKING:
    from cupola.nn.sources.trained import Preprocessing


class Resized(Placement):
    """Target images (C, H, W) as the source's, with a trained size; c is one channel more.

    inner: the side at first, between `least` and the source's size.
    """

    def __init__(
        self, shape: Sequence[int], to: Preprocessing, inner: int, pad: Pad, least: int
    ) -> None:
        super().__init__(shape, to, inner, pad)
        if len(self.shape) != 3:
            raise PlanError(
                "model.least_inner trains the size of images; numbers and series are laid out as "
                "whole pixels: give their size by model.inner alone"
            )
        if not least < inner < to.size:
            raise PlanError(
                f"model.inner = {inner} is where training the size begins: it must be above "
                f"model.least_inner = {least} and below the source's {to.size} pixels"
            )
        self.least = least
        self.scale = nn.Parameter(torch.tensor([scale_of(inner, least, to.size)]))

    def side(self) -> float:
        """Of the image as it is now, in pixels."""
        return float(side_of(self.scale.detach(), self.least, self.to_.size))

    def forward(self, x: Tensor) -> Tensor:
        return self.placed(x, self.scale)

    def placed(self, x: Tensor, scale: Tensor) -> Tensor:
        """(n, channels + 1, size, size). scale: (1,), or the same number for each image, (n,), so
        that each has a gradient of its own."""
        side = side_of(scale, self.least, self.to_.size).view(-1, 1, 1, 1)
        cover = self._cover(side)
        covered = cover * cover.mT
        x = self._along(self._along(x, side, 2), side, 3)
        mean, std = (x.new_tensor(v).view(-1, 1, 1) for v in (self.to_.mean, self.to_.std))
        black = self.pad == "black"
        x = (x * covered - mean) / std if black else (x - mean) / std * covered
        covered = covered.expand(x.shape[0], -1, -1, -1)
        return torch.cat([x, covered], 1).contiguous(memory_format=torch.channels_last)

    def _from_middle(self, like: Tensor) -> Tensor:
        """Where the middles of pixels are, (size,)."""
        size = self.to_.size
        return torch.arange(size, device=like.device, dtype=like.dtype) + (0.5 - size / 2)

    def _cover(self, side: Tensor) -> Tensor:
        """How much of each row of pixels lies within the image, (m, 1, size, 1)."""
        return (side / 2 - self._from_middle(side).abs().view(-1, 1) + 0.5).clamp(0, 1)

    def _along(self, x: Tensor, side: Tensor, dim: int) -> Tensor:
        """Resized along one dimension: between the two nearest pixels, by distance."""
        length = x.shape[dim]
        place = self._from_middle(side).view(-1, 1) * (length / side) + (length - 1) / 2
        place = place.clamp(0, length - 1)
        first = place.detach().floor().clamp(max=max(0, length - 2))
        share = place - first if dim == 2 else (place - first).mT
        index = first[0].flatten().long()
        after = (index + 1).clamp(max=length - 1)
        return x.index_select(dim, index) * (1 - share) + x.index_select(dim, after) * share


class Around(Border):
    """The border of what `Resized` gives: everywhere, as far as the image leaves room."""

    def __init__(self, to: Preprocessing, inner: int, begin: Begin = "random") -> None:
        super().__init__(to, inner, begin)
        self.mask.fill_(True)

    def forward(self, x: Tensor) -> Tensor:
        image, covered = x[:, :-1], x[:, -1:]
        return image + (1 - covered) * self.unit * torch.tanh(self.theta)


def side_of(scale: Tensor, least: int, size: int) -> Tensor:
    """Pixels. Of operations that are rounded once: a sample's bits must not depend on its place
    among others, and a sigmoid of a few numbers may (see `privacy.persample`)."""
    return (least + size) / 2 + (size - least) / 2 * (scale / torch.sqrt(1 + scale * scale))


def scale_of(side: float, least: int, size: int) -> float:
    """The scale at which the image has this size, strictly between the two."""
    place = (2 * side - least - size) / (size - least)
    return place / math.sqrt(1 - place * place)
