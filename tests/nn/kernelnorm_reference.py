"""Kernel normalisation as it is written down: copies of all windows, plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Pairs = tuple[tuple[int, int], ...]


def padded(x: Tensor, padding: Pairs, mode: str = "zeros") -> Tensor:
    """padding: (before, after) per dimension."""
    sides = [side for pair in reversed(padding) for side in pair]
    return F.pad(x, sides, mode="constant" if mode == "zeros" else mode)


def windows(x: Tensor, kernel, stride, dilation) -> Tensor:
    """(n, C, *positions, *kernel) of the padded x."""
    places = [
        [[p + d * i for i in range(k)] for p in range(0, size - d * (k - 1), t)]
        for size, k, t, d in zip(x.shape[2:], kernel, stride, dilation)
    ]
    for dim, rows in enumerate(places):  # (..., positions, kernel) in place of each dimension
        x = x.index_select(2 + 2 * dim, torch.tensor(rows).flatten())
        x = x.unflatten(2 + 2 * dim, (len(rows), -1))
    rank = len(places)
    order = [2 + 2 * i for i in range(rank)] + [3 + 2 * i for i in range(rank)]
    return x.permute(0, 1, *order)


def normalised(u: Tensor, keep: Tensor | None, dropout: float, eps: float = 1e-5) -> Tensor:
    """Windows (n, C, *positions, *kernel) by the statistics of their dropped-out copies."""
    mean, variance = statistics(u, keep, dropout)
    return (u - mean) / torch.sqrt(variance + eps)


def expected(u: Tensor, dropout: float, eps: float = 1e-5) -> Tensor:
    """Windows by the statistics that are expected of their dropped-out copies."""
    mean, variance = statistics(u, None, 0.0)
    variance = (variance + mean**2) / (1 - dropout) - mean**2
    return (u - mean) / torch.sqrt(variance + eps)


def statistics(u: Tensor, keep: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of windows' dropped-out copies."""
    copy = u if keep is None else u * keep / (1 - dropout)
    rank = (u.dim() - 2) // 2
    dims = (1, *range(2 + rank, 2 + 2 * rank))
    variance, mean = torch.var_mean(copy, dims, correction=0, keepdim=True)
    return mean, variance


def kernel_norm(x: Tensor, keep: Tensor | None, case: dict, per: str) -> Tensor:
    """KernelNorm; keep: 1 or 0 for every input, or for every element of every window; without it
    and with dropout, expected statistics."""
    u = _windows(x, case)
    if keep is not None and per == "input":
        keep = _mask(keep, x, case)
    p, rank = case["dropout"], len(case["kernel"])
    out = normalised(u, keep, p) if keep is not None or not p else expected(u, p)
    for i in range(rank):  # kernel dimensions go behind their positions
        out = out.movedim(2 + rank + i, 3 + 2 * i)
    return out.reshape(
        *x.shape[:2], *(out.shape[2 + 2 * i] * out.shape[3 + 2 * i] for i in range(rank))
    )


def kn_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, keep: Tensor | None, case: dict
) -> Tensor:
    """KNConv with one mask per input; without it and with dropout, expected statistics."""
    rank, p, groups = x.dim() - 2, case["dropout"], case["groups"]
    u = _windows(x, case)
    if keep is None and p:
        u = expected(u, p)
    else:
        u = normalised(u, None if keep is None else _mask(keep, x, case), p)
    sizes = u.shape[2 : 2 + rank]
    u = u.unflatten(1, (groups, -1))  # (n, groups, C / groups, *positions, *kernel)
    u = u.movedim(2, 2 + rank).flatten(2 + rank).flatten(2, 1 + rank)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    out = torch.einsum("ngpk,gok->ngop", u, rows).flatten(1, 2).unflatten(2, sizes)
    return out if bias is None else out + bias.view(-1, *[1] * rank)


def largest_scale(x: Tensor, keep: Tensor | None, case: dict, per: str) -> float:
    """The largest 1 / sqrt(var + eps) of KernelNorm's windows."""
    if keep is not None and per == "input":
        keep = _mask(keep, x, case)
    return float((statistics(_windows(x, case), keep, case["dropout"])[1].min() + 1e-5).rsqrt())


def _windows(x: Tensor, case: dict) -> Tensor:
    x = padded(x, case["padding"], case["mode"])
    return windows(x, case["kernel"], case["stride"], case["dilation"])


def _mask(keep: Tensor, x: Tensor, case: dict) -> Tensor:
    """Windows of a mask: of the input, or of what mirrored and repeated places make of it."""
    if keep.shape == x.shape and case["mode"] == "zeros":
        keep = padded(keep, case["padding"])
    return windows(keep, case["kernel"], case["stride"], case["dilation"])
