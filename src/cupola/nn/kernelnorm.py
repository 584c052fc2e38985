"""Kernel normalisation: every window of the input is normalised before a kernel sees it.

Nasirigerdeh et al., "Kernel normalized convolutional networks" (TMLR 2024). A window U (C, *kernel)
of the zero-padded input becomes (U - mu) / sqrt(var + eps), with mean and biased variance of its
inverted-dropout copy, padding included; there is nothing to learn. `KernelNorm` gives the windows
side by side, `KNConv` the convolution of them, bias and all:

    KNConv(x) = (conv(x) - mu * sum(W)) / sqrt(var + eps) + bias.

Samples do not see each other. Dropout acts on the statistics only; masks come from torch's
generator. In evaluation nothing is drawn: statistics are those expected of the dropped copy
(`evaluation` says otherwise). With groups, statistics still span all channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

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
    is_recorded,
    windows,
)

#: One number for all sides, one per dimension, (before, after) per dimension, or as in `Conv2d`:
#: "same" keeps the size (stride 1), "valid" is none.
Padding = int | tuple[int, ...] | tuple[tuple[int, int], ...] | Literal["same", "valid"]
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]
#: input: one mask, shared by overlapping windows; window: every window has a mask of its own.
Per = Literal["input", "window"]
#: Statistics in evaluation: expected: of the dropped copy, without a draw; random: of a drawn copy,
#: as in training and in the published code; off: of the input itself.
Evaluation = Literal["expected", "random", "off"]


class _Windows(nn.Module):
    """What both kinds of layer have in common: where windows lie, dropout, when it is on."""

    rank: int
    dropout: float
    per: Per
    evaluation: Evaluation
    geometry: Geometry
    around: Sizes  # padding that is uneven or not of zeros, as `F.pad` takes it
    padding_mode: PaddingMode

    @property
    def random(self) -> bool:
        """Whether a call draws a mask now."""
        return self.dropout > 0 and (self.training or self.evaluation == "random")

    @property
    def share(self) -> float:
        """The dropout that statistics have now, drawn or expected."""
        return self.dropout if self.training or self.evaluation != "off" else 0.0

    def _set(
        self,
        geometry: Geometry,
        around: Sizes,
        padding_mode: PaddingMode,
        dropout: float,
        per: Per,
        evaluation: Evaluation,
    ) -> None:
        if not 0 <= dropout < 1:
            raise PlanError(f"dropout = {dropout}: a share of the input, at least 0 and below 1")
        _require_known("per", per, Per)
        _require_known("evaluation", evaluation, Evaluation)
        self.geometry, self.around, self.padding_mode = geometry, around, padding_mode
        self.dropout, self.per, self.evaluation = dropout, per, evaluation

    def forward(self, x: Tensor) -> Tensor:
        """Inputs (n, C, *sizes), or one of them (C, *sizes); the output likewise."""
        if not is_recorded():
            self._require_fitting(x)
        if x.dim() == self.rank + 1:
            return self._called(x.unsqueeze(0)).squeeze(0)
        return self._called(x)

    def _called(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def _require_fitting(self, x: Tensor) -> None:
        kind, rank = type(self).__name__, self.rank
        if x.dim() not in (rank + 1, rank + 2):
            raise PlanError(
                f"{kind} takes inputs (n, channels, {rank} sizes), or one without n, not of shape "
                f"{tuple(x.shape)}"
            )
        at, sizes = self.geometry, tuple(x.shape[-rank:])
        pairs = _pairs(self.around) or [(p, p) for p in at.padding]
        low = {"reflect": 1, "circular": 0}.get(self.padding_mode)
        if low is not None and any(max(p) > s - low for s, p in zip(sizes, pairs)):
            raise PlanError(
                f"{kind}: padding_mode = '{self.padding_mode}' cannot pad {_times(sizes)} by "
                f"{pairs}: enlarge the inputs, or take padding_mode = 'zeros'"
            )
        whole = tuple(s + sum(p) for s, p in zip(sizes, pairs))
        if any(s < n for s, n in zip(whole, at.spans)):
            raise PlanError(
                f"{kind}: inputs of {_times(sizes)}, padded to {_times(whole)}, are smaller than a "
                f"window of {_times(at.spans)} (kernel {_times(at.kernel)}, dilation "
                f"{_times(at.dilation)}): enlarge them, add padding or take a smaller kernel"
            )

    def surrounded(self, x: Tensor) -> Tensor:
        """x with the padding that a convolution cannot add itself: uneven, or not of zeros."""
        mode = "constant" if self.padding_mode == "zeros" else self.padding_mode
        return F.pad(x, self.around, mode=mode) if self.around else x

    def _drawn(self, x: Tensor) -> Tensor:
        """A mask for an input: of the mirrored or repeated places, too, but not for zeros."""
        shape = list(x.shape)
        if self.padding_mode != "zeros":
            for dim, pair in enumerate(_pairs(self.around), 2):
                shape[dim] += sum(pair)
        return drawn(tuple(shape), self.dropout, x.device)

    def _beside(self, drop: Tensor) -> Tensor:
        """An input's mask next to its `surrounded` values."""
        return F.pad(drop, self.around) if self.padding_mode == "zeros" and self.around else drop

    def _words(self) -> str:
        at = self.geometry
        words = f", padding={_pairs(self.around) or at.padding}"
        words += f", dilation={at.dilation}" if at.dilation != at.ones else ""
        words += f", padding_mode='{self.padding_mode}'" if self.padding_mode != "zeros" else ""
        words += f", dropout={self.dropout}" + (", per='window'" if self.per == "window" else "")
        return words + (
            "" if self.evaluation == "expected" else f", evaluation='{self.evaluation}'"
        )

    def _normalised(self, x: Tensor) -> Tensor:
        """All windows, normalised and laid side by side: (n, C, *(kernel * positions))."""
        at, rank = self.geometry, self.rank
        single = at.kernel == at.stride == at.ones and not any((*at.padding, *self.around))
        drop = self._drawn(x) if self.random and self.per == "input" and not single else None
        u = x if single else windows(F.pad(self.surrounded(x), at.sides), at)
        if drop is not None:
            drop = windows(F.pad(self._beside(drop), at.sides), at)
        elif self.random:
            drop = drawn(tuple(u.shape), self.dropout, x.device)
        dims = (1,) if single else (1, *range(2 + rank, 2 + 2 * rank))
        out = _apply(NormalisedFunction, u, drop, self.share, dims, at.eps)[0]
        return out if single else _side_by_side(out, rank)


class KernelNorm(_Windows):
    """Base of the layers below, to recognise them by."""

    def __init__(
        self,
        kernel_size: int | Sizes = 1,
        stride: int | Sizes = 1,
        padding: Padding = 0,
        dilation: int | Sizes = 1,
        padding_mode: PaddingMode = "zeros",
        *,
        dropout: float = 0.1,
        per: Per = "window",
        evaluation: Evaluation = "expected",
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        places = _places(self.rank, kernel_size, stride, padding, dilation, padding_mode, eps)
        self._set(*places, padding_mode, dropout, per, evaluation)

    def _called(self, x: Tensor) -> Tensor:
        """(n, C, *sizes) to (n, C, *(kernel * positions)): normalised windows side by side."""
        return self._normalised(x)

    def extra_repr(self) -> str:
        return f"{self.geometry.kernel}, stride={self.geometry.stride}{self._words()}"


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
    """A convolution of normalised windows; arguments, weights, bias and their initial values are
    those of torch's convolution."""

    #: Whether statistics of calls with gradients are noted in `noted`, for hooks that need them.
    notes = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sizes,
        stride: int | Sizes = 1,
        padding: Padding = 0,
        dilation: int | Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        dropout: float = 0.05,
        per: Per = "input",
        evaluation: Evaluation = "expected",
        eps: float = 1e-5,
    ) -> None:
        at, around = _places(self.rank, kernel_size, stride, padding, dilation, padding_mode, eps)
        if groups < 1 or in_channels % groups or out_channels % groups:
            raise PlanError(
                f"groups = {groups} does not divide in_channels = {in_channels} and "
                f"out_channels = {out_channels}"
            )
        nn.modules.conv._ConvNd.__init__(
            self, in_channels, out_channels, at.kernel, at.stride, at.padding, at.dilation,
            False, at.zeros, groups, bias, padding_mode, device, dtype,
        )  # fmt: skip
        self._set(at, around, padding_mode, dropout, per, evaluation)
        self.noted: list[tuple[Tensor, Tensor]] = []

    def _require_fitting(self, x: Tensor) -> None:
        super()._require_fitting(x)
        channels = x.shape[-self.rank - 1]
        if channels != self.in_channels:
            raise PlanError(
                f"{type(self).__name__} was made for {self.in_channels} channels, these inputs "
                f"{tuple(x.shape)} have {channels}"
            )

    def _called(self, x: Tensor) -> Tensor:
        """(n, C, *sizes) to (n, outputs, *positions)."""
        if self.random and self.per == "window":
            at = self.geometry
            side_by_side = at._replace(stride=at.kernel, padding=at.zeros, dilation=at.ones)
            return self._convolved(self._normalised(x), self.bias, side_by_side)
        out, mu, scale = self.masked(x, self._drawn(x) if self.random else None)
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor
        if self.notes and out.requires_grad and not wrapped(out):
            self.noted.append((mu.detach(), scale.detach()))
        return out

    def masked(self, x: Tensor, drop: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Output, mean and 1/std of windows for a given mask, True where the copy has a zero;
        without one, what is expected of the copy."""
        x, drop = self.surrounded(x), None if drop is None else self._beside(drop)
        at = self.geometry._replace(dropout=self.share if drop is None else self.dropout)
        mu, scale = _apply(StatisticsFunction, x, drop, at)  # first: its copies are gone then
        c, total = self._convolved(x, None, at), self.weight.flatten(1).sum(1)
        return _apply(AdjustedFunction, c, total, self.bias, mu, scale), mu, scale

    def _convolved(self, x: Tensor, bias: Tensor | None, at: Geometry) -> Tensor:
        return torch.convolution(
            x, self.weight, bias, at.stride, at.padding, at.dilation, False, at.zeros, self.groups
        )

    def extra_repr(self) -> str:
        at = self.geometry
        words = f"{self.in_channels}, {self.out_channels}, {at.kernel}, stride={at.stride}"
        words += f", groups={self.groups}" if self.groups > 1 else ""
        return f"{words}{'' if self.bias is not None else ', bias=False'}{self._words()}"


class KNConv1d(KNConv):
    """Sequences (n, C, T); see the module's documentation."""

    rank = 1


class KNConv2d(KNConv):
    """Images (n, C, H, W); see the module's documentation.

    >>> import torch
    >>> layer = KNConv2d(3, 8, 3, padding="same", dilation=2, dropout=0.1)
    >>> layer(torch.rand(2, 3, 9, 9)).shape
    torch.Size([2, 8, 9, 9])
    >>> layer(torch.rand(3, 9, 9)).shape  # one image
    torch.Size([8, 9, 9])
    """

    rank = 2


class KNConv3d(KNConv):
    """Volumes (n, C, D, H, W); see the module's documentation."""

    rank = 3


def _apply(function: Any, *args: Any) -> Any:
    # A recorded graph holds the forward pass in plain operations.
    return (function.forward if is_recorded() else function.apply)(*args)


def _side_by_side(out: Tensor, rank: int) -> Tensor:
    """(n, C, *positions, *kernel) to (n, C, *(kernel * positions))."""
    tiled = out.permute(0, 1, *(d for i in range(rank) for d in (2 + i, 2 + rank + i)))
    sizes = [tiled.shape[2 + 2 * i] * tiled.shape[3 + 2 * i] for i in range(rank)]
    return tiled.reshape(*tiled.shape[:2], *sizes)


def _places(
    rank: int,
    kernel_size: int | Sizes,
    stride: int | Sizes,
    padding: Padding,
    dilation: int | Sizes,
    padding_mode: PaddingMode,
    eps: float,
) -> tuple[Geometry, Sizes]:
    """Where windows lie, and padding that is uneven or not of zeros as `F.pad` takes it."""
    _require_known("padding_mode", padding_mode, PaddingMode)
    kernel = _each(kernel_size, rank, "kernel_size")
    steps, apart = _each(stride, rank, "stride"), _each(dilation, rank, "dilation")
    at = Geometry(kernel, steps, (0,) * rank, apart, eps)
    if padding == "same" and any(s > 1 for s in steps):
        raise PlanError(f"padding = 'same' is for stride 1, not {steps}: give numbers instead")
    pairs = _given_pairs(padding, rank, at)
    if padding_mode == "zeros" and all(a == b for a, b in pairs):
        return at._replace(padding=tuple(a for a, _ in pairs)), ()
    around = tuple(side for pair in reversed(pairs) for side in pair)
    return at, around if any(around) else ()


def _given_pairs(padding: Padding, rank: int, at: Geometry) -> list[tuple[int, int]]:
    """(before, after) per dimension."""
    if padding == "valid":
        return [(0, 0)] * rank
    if padding == "same":
        return [((s - 1) // 2, s // 2) for s in at.spans]
    whole = isinstance(padding, str) or (isinstance(padding, Sequence) and len(padding) != rank)
    given: Any = () if whole else (padding,) * rank if isinstance(padding, int) else tuple(padding)
    pairs = [(p, p) if isinstance(p, int) else tuple(p) for p in given]
    if len(pairs) != rank or any(len(p) != 2 or min(p) < 0 for p in pairs):
        raise PlanError(
            f"padding = {padding!r}: 'same', 'valid', one number, {rank} of them, or {rank} pairs "
            "(before, after)"
        )
    return pairs


def _pairs(around: Sizes) -> list[tuple[int, int]]:
    """`F.pad`'s order to (before, after) per dimension."""
    return [(around[i], around[i + 1]) for i in range(len(around) - 2, -1, -2)]


def _each(value: int | Sizes, rank: int, name: str) -> Sizes:
    values = (value,) * rank if isinstance(value, int) else tuple(value)
    if len(values) != rank or any(not isinstance(v, int) or v < 1 for v in values):
        raise PlanError(f"{name} = {value!r}: one positive number, or {rank} of them")
    return values


def _require_known(name: str, value: str, kind: Any) -> None:
    if value not in get_args(kind):
        raise PlanError(f"{name} = {value!r}: one of {', '.join(map(repr, get_args(kind)))}")


def _times(sizes: Sizes) -> str:
    return "x".join(map(str, sizes))
