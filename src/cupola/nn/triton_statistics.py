"""Statistics of windows by one Triton kernel, for GPUs: no copies and no maps in between.

The same numbers as `fused` finds on a CPU, for images (n, C, H, W) in float32 or below; every
window is read twice, for its mean and for its variance, so that nothing large is subtracted. It is
compared with the CPU form in Triton's interpreter (`TRITON_INTERPRET=1`); `fused.use_triton`
switches it on. It has not been run on a GPU.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PLACES, CHANNELS = 64, 32  # of a block


@triton.jit
def _window_statistics(
    x, drop, mean, scale, channels, high, wide, rows, columns,
    step_y, step_x, before_y, before_x, apart_y, apart_x, eps, dropout, keep,
    tall: tl.constexpr, broad: tl.constexpr, masked: tl.constexpr,
    block_places: tl.constexpr, block_channels: tl.constexpr,
):  # fmt: skip
    sample = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block_places + tl.arange(0, block_places)
    inside = place < rows * columns
    top = (place // columns) * step_y - before_y
    left = (place % columns) * step_x - before_x
    number = (channels * tall * broad).to(tl.float32)
    mu = tl.zeros((block_places,), tl.float32)
    spread = tl.zeros((block_places,), tl.float32)
    for turn in tl.static_range(2):
        for i in range(tall):
            y = top + i * apart_y
            for j in range(broad):
                z = left + j * apart_x
                seen = inside & (y >= 0) & (y < high) & (z >= 0) & (z < wide)
                for first in range(0, channels, block_channels):
                    channel = first + tl.arange(0, block_channels)
                    known = channel < channels
                    at = (sample * channels + channel[:, None]) * high + y[None, :]
                    at = at * wide + z[None, :]
                    real = known[:, None] & seen[None, :]
                    values = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
                    if masked:
                        dropped = tl.load(drop + at, mask=real, other=0)
                        values = tl.where(dropped != 0, 0.0, values * keep)
                    if turn == 0:
                        mu += tl.sum(values, 0)
                    else:
                        off = values - mu[None, :]
                        # Padding counts, but what lies behind the last channel or place does not.
                        off = tl.where(known[:, None] & inside[None, :], off, 0.0)
                        spread += tl.sum(off * off, 0)
        if turn == 0:
            mu = mu / number
    variance = spread / number
    if not masked:
        variance = (variance + dropout * mu * mu) / (1.0 - dropout)
    out = sample * rows * columns + place
    tl.store(mean + out, mu, mask=inside)
    tl.store(scale + out, 1.0 / tl.sqrt(variance + eps), mask=inside)


def window_statistics(x: Tensor, drop: Tensor | None, at: Any) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(var + eps) of every window, (n, 1, rows, columns), as by `fused`."""
    x = x.contiguous()
    n, channels, high, wide = x.shape
    rows, columns = (
        (s + 2 * p - span) // t + 1
        for s, p, span, t in zip((high, wide), at.padding, at.spans, at.stride)
    )
    mean = torch.empty(n, 1, rows, columns, device=x.device)
    scale = torch.empty_like(mean)
    mask = x if drop is None else drop.contiguous().view(torch.uint8)
    grid = (triton.cdiv(rows * columns, PLACES), n)
    _window_statistics[grid](
        x, mask, mean, scale, channels, high, wide, rows, columns, *at.stride, *at.padding,
        *at.dilation, at.eps, at.dropout, 1 / (1 - at.dropout), *at.kernel, drop is not None,
        PLACES, CHANNELS,
    )  # fmt: skip
    return mean, scale
