"""Kernel normalisation: every window of the input is normalised before a kernel sees it.

Nasirigerdeh et al., "Kernel normalized convolutional networks" (TMLR 2024). A window U (C, *kernel)
of the zero-padded input becomes (U - mu) / sqrt(var + eps), with mean and biased variance of its
inverted-dropout copy, padding included; there is nothing to learn. `KernelNorm` gives the windows
side by side, `KNConv` the convolution of them, bias and all:

    KNConv(x) = (conv(x) - mu * sum(W)) / sqrt(var + eps) + bias.

Samples do not see each other. Dropout acts on the statistics only, and in training only unless
`always` is set, as the published code has it; masks come from torch's generator. With groups,
statistics still span all channels.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.nn.fused import (
    AdjustedFunction,
    Geometry,
    NormalisedFunction,
    Sizes,
    StatisticsFunction,
    drawn,
    windows,
)

#: One number for all sides, one per dimension, or (before, after) per dimension.
Padding = int | tuple[int, ...] | tuple[tuple[int, int], ...]
#: input: one mask, shared by overlapping windows; window: every window has a mask of its own.
Per = Literal["input", "window"]


class _Windows(nn.Module):
    """What both kinds of layer have in common: where windows lie, dropout, when it is on."""

    dropout: float
    per: Per
    always: bool
    geometry: Geometry
    around: Sizes  # padding where sides differ, as `F.pad` takes it

    @property
    def random(self) -> bool:
        """Whether a call draws a mask now."""
        return self.dropout > 0 and (self.training or self.always)

    def _set(
        self,
        kernel: Sizes,
        stride: Sizes,
        sides: tuple[Sizes, Sizes],
        eps: float,
        dropout: float,
        per: Per,
        always: bool,
    ) -> None:
        if not 0 <= dropout < 1:
            raise PlanError(f"dropout = {dropout}: a share of the input, at least 0 and below 1")
        if per not in ("input", "window"):
            raise PlanError(f"per = {per!r}: dropout masks are per 'input' or per 'window'")
        self.geometry, self.around = Geometry(kernel, stride, sides[0], eps), sides[1]
        self.dropout, self.per, self.always = dropout, per, always

    def _words(self) -> str:
        words = f"dropout={self.dropout}"
        words += ", per='window'" if self.per == "window" else ""
        return words + (", always=True" if self.always else "")

    def _shown(self) -> Any:
        """Padding as it was given."""
        sides = self.around
        pairs = [(sides[i], sides[i + 1]) for i in range(len(sides) - 2, -1, -2)]
        return pairs or self.geometry.padding

    def _normalised(self, x: Tensor) -> Tensor:
        """All windows, normalised and laid side by side: (n, C, *(kernel * positions))."""
        at, rank = self.geometry, len(self.geometry.kernel)
        sides = self.around or at.sides
        single = at.kernel == at.stride == at.ones and not any(sides)
        u = x if single else windows(F.pad(x, sides), at)
        dims = (1,) if single else (1, *range(2 + rank, 2 + 2 * rank))
        drop = None
        if self.random and (single or self.per == "window"):
            drop = drawn(tuple(u.shape), self.dropout, x.device)
        elif self.random:
            drop = drawn(tuple(x.shape), self.dropout, x.device)
            drop = windows(F.pad(drop, sides), at)
        out = _apply(NormalisedFunction, u, drop, self.dropout, dims, at.eps)[0]
        return out if single else _side_by_side(out, rank)


class KernelNorm(_Windows):
    """Base of the layers below, to recognise them by."""

    rank: int

    def __init__(
        self,
        kernel_size: int | Sizes = 1,
        stride: int | Sizes = 1,
        padding: Padding = 0,
        *,
        dropout: float = 0.1,
        per: Per = "window",
        always: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        kernel, steps = (
            _each(value, self.rank, name)
            for value, name in ((kernel_size, "kernel_size"), (stride, "stride"))
        )
        self._set(kernel, steps, _sides(padding, self.rank), eps, dropout, per, always)

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, *sizes) to (n, C, *(kernel * positions)): normalised windows side by side."""
        return self._normalised(x)

    def extra_repr(self) -> str:
        at = self.geometry
        return f"{at.kernel}, stride={at.stride}, padding={self._shown()}, {self._words()}"


class KernelNorm1d(KernelNorm):
    """Windows of sequences (n, C, T); see the module's documentation."""

    rank = 1


class KernelNorm2d(KernelNorm):
    """Windows of images (n, C, H, W); see the module's documentation."""

    rank = 2


class KernelNorm3d(KernelNorm):
    """Windows of volumes (n, C, D, H, W); see the module's documentation."""

    rank = 3


class KNConv(_Windows, nn.modules.conv._ConvNd):
    """A convolution of normalised windows; weights, bias and their defaults are a convolution's."""

    rank: int
    #: Whether statistics of calls with gradients are noted in `noted`, for hooks that need them.
    notes = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sizes,
        stride: int | Sizes = 1,
        padding: Padding = 0,
        *,
        groups: int = 1,
        bias: bool = True,
        dropout: float = 0.05,
        per: Per = "input",
        always: bool = False,
        eps: float = 1e-5,
    ) -> None:
        kernel, steps = (
            _each(value, self.rank, name)
            for value, name in ((kernel_size, "kernel_size"), (stride, "stride"))
        )
        sides = _sides(padding, self.rank)
        one, none = (1,) * self.rank, (0,) * self.rank
        nn.modules.conv._ConvNd.__init__(
            self, in_channels, out_channels, kernel, steps, sides[0], one,
            False, none, groups, bias, "zeros",
        )  # fmt: skip
        self._set(kernel, steps, sides, eps, dropout, per, always)
        self.noted: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        """(n, C, *sizes) to (n, outputs, *positions)."""
        if self.random and self.per == "window":
            at = self.geometry
            return self._convolved(self._normalised(x), self.bias, at.kernel, at.zeros)
        drop = drawn(tuple(x.shape), self.dropout, x.device) if self.random else None
        out, mu, scale = self.masked(x, drop)
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        if self.notes and out.requires_grad and not wrapped(out):
            self.noted.append((mu.detach(), scale.detach()))
        return out

    def masked(self, x: Tensor, drop: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Output, mean and 1/std of windows for a given mask, True where the copy has a zero."""
        if self.around:
            x = F.pad(x, self.around)
            drop = None if drop is None else F.pad(drop, self.around)
        at = self.geometry._replace(dropout=self.dropout)
        mu, scale = _apply(StatisticsFunction, x, drop, at)  # first: its copies are gone then
        c, total = self._convolved(x, None, at.stride, at.padding), self.weight.flatten(1).sum(1)
        return _apply(AdjustedFunction, c, total, self.bias, mu, scale), mu, scale

    def _convolved(self, x: Tensor, bias: Tensor | None, stride: Sizes, padding: Sizes) -> Tensor:
        at = self.geometry
        return torch.convolution(
            x, self.weight, bias, stride, padding, at.ones, False, at.zeros, self.groups
        )

    def extra_repr(self) -> str:
        at = self.geometry
        words = f"{self.in_channels}, {self.out_channels}, {at.kernel}, stride={at.stride}"
        words += f", padding={self._shown()}" + (
            f", groups={self.groups}" if self.groups > 1 else ""
        )
        return f"{words}, {'' if self.bias is not None else 'bias=False, '}{self._words()}"


class KNConv1d(KNConv):
    """Sequences (n, C, T); see the module's documentation."""

    rank = 1


class KNConv2d(KNConv):
    """Images (n, C, H, W); see the module's documentation."""

    rank = 2


class KNConv3d(KNConv):
    """Volumes (n, C, D, H, W); see the module's documentation."""

    rank = 3


def _apply(function: Any, *args: Any) -> Any:
    # An exported graph holds the forward pass in plain operations.
    return (function.forward if torch.compiler.is_exporting() else function.apply)(*args)


def _side_by_side(out: Tensor, rank: int) -> Tensor:
    """(n, C, *positions, *kernel) to (n, C, *(kernel * positions))."""
    tiled = out.permute(0, 1, *(d for i in range(rank) for d in (2 + i, 2 + rank + i)))
    sizes = [tiled.shape[2 + 2 * i] * tiled.shape[3 + 2 * i] for i in range(rank)]
    return tiled.reshape(*tiled.shape[:2], *sizes)


def _each(value: int | Sizes, rank: int, name: str) -> Sizes:
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank or any(not isinstance(v, int) or v < 1 for v in values):
        raise PlanError(f"{name} = {value!r}: one positive number, or {rank} of them")
    return values


def _sides(padding: Padding, rank: int) -> tuple[Sizes, Sizes]:
    """(padding on both sides, other padding as `F.pad` takes it), one of them zero or empty."""
    given: Any = (padding,) * rank if isinstance(padding, int) else tuple(padding)
    pairs = [(p, p) if isinstance(p, int) else tuple(p) for p in given]
    if len(pairs) != rank or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise PlanError(
            f"padding = {padding!r}: one number, {rank} of them, or {rank} pairs (before, after)"
        )
    if all(a == b for a, b in pairs):
        return tuple(a for a, _ in pairs), ()
    return (0,) * rank, tuple(side for pair in reversed(pairs) for side in pair)
