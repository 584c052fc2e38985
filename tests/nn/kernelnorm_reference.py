"""Kernel normalisation as it is written down: copies of all windows, plain autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

Pairs = tuple[tuple[int, int], ...]


def windows(x: Tensor, kernel, stride, padding: Pairs) -> Tensor:
    """(n, C, *positions, *kernel) of the zero-padded x; padding: (before, after) per dimension."""
    x = F.pad(x, [side for pair in reversed(padding) for side in pair])
    for dim, (size, step) in enumerate(zip(kernel, stride), 2):
        x = x.unfold(dim, size, step)
    return x


def normalised(u: Tensor, keep: Tensor | None, dropout: float, eps: float = 1e-5) -> Tensor:
    """Windows (n, C, *positions, *kernel) by the statistics of their dropped-out copies."""
    mean, variance = statistics(u, keep, dropout)
    return (u - mean) / torch.sqrt(variance + eps)


def statistics(u: Tensor, keep: Tensor | None, dropout: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of windows' dropped-out copies."""
    copy = u if keep is None else u * keep / (1 - dropout)
    rank = (u.dim() - 2) // 2
    dims = (1, *range(2 + rank, 2 + 2 * rank))
    variance, mean = torch.var_mean(copy, dims, correction=0, keepdim=True)
    return mean, variance


def kernel_norm(
    x: Tensor, keep: Tensor | None, kernel, stride, padding: Pairs, dropout: float, per: str
) -> Tensor:
    """KernelNorm; keep: 1 or 0 for every input, or for every element of every window."""
    u = windows(x, kernel, stride, padding)
    if keep is not None and per == "input":
        keep = windows(keep, kernel, stride, padding)
    out, rank = normalised(u, keep, dropout), len(kernel)
    for i in range(rank):  # kernel dimensions go behind their positions
        out = out.movedim(2 + rank + i, 3 + 2 * i)
    return out.reshape(
        *x.shape[:2], *(out.shape[2 + 2 * i] * out.shape[3 + 2 * i] for i in range(rank))
    )


def kn_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    keep: Tensor | None,
    stride,
    padding: Pairs,
    groups: int,
    dropout: float,
) -> Tensor:
    """KNConv with one mask per input."""
    kernel, rank = tuple(weight.shape[2:]), x.dim() - 2
    keep = None if keep is None else windows(keep, kernel, stride, padding)
    u = normalised(windows(x, kernel, stride, padding), keep, dropout)
    u = u.unflatten(1, (groups, -1))  # (n, groups, C / groups, *positions, *kernel)
    u = u.movedim(2, 2 + rank).flatten(2 + rank).flatten(2, 1 + rank)
    rows = weight.reshape(groups, weight.shape[0] // groups, -1)
    out = torch.einsum("ngpk,gok->ngop", u, rows).flatten(1, 2)
    sizes = [(s + sum(p) - k) // t + 1 for s, p, k, t in zip(x.shape[2:], padding, kernel, stride)]
    out = out.unflatten(2, sizes)
    return out if bias is None else out + bias.view(-1, *[1] * rank)


def largest_scale(x: Tensor, keep: Tensor | None, *args) -> float:
    """The largest 1 / sqrt(var + eps) of KernelNorm's windows."""
    kernel, stride, padding, dropout, per = args
    u = windows(x, kernel, stride, padding)
    if keep is not None and per == "input":
        keep = windows(keep, kernel, stride, padding)
    return float((statistics(u, keep, dropout)[1].min() + 1e-5).rsqrt())
