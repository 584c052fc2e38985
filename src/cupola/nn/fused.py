"""The computation of kernel-normalised layers, forward and backward, without copies of windows.

A window (C, *kernel) of the zero-padded input has mean mu and biased variance var, both of its
inverted-dropout copy. Channels are reduced to one, and a box filter does the rest. Where there is
dropout but no mask, they are what is expected of the copy: the mean stays, and the variance is
(var + mu^2) / (1 - p) - mu^2 = (var + p mu^2) / (1 - p).

Shapes: images x (n, C, *sizes), one to three sizes; statistics (n, 1, *positions); dropout masks
are True where the copy has a zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from cupola.errors import PlanError

Sizes = tuple[int, ...]


class Geometry(NamedTuple):
    """Where windows lie: numbers per dimension; padding is of zeros, the same on both sides.

    dropout: of the mask; without a mask, that whose expected statistics are wanted.
    """

    kernel: Sizes
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    eps: float = 1e-5
    dropout: float = 0.0

    @property
    def ones(self) -> Sizes:
        return (1,) * len(self.kernel)

    @property
    def zeros(self) -> Sizes:
        return (0,) * len(self.kernel)

    @property
    def sides(self) -> Sizes:
        """Padding as `F.pad` takes it."""
        return tuple(p for p in reversed(self.padding) for _ in range(2))

    @property
    def spans(self) -> Sizes:
        """From the first place that a window holds to its last."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation))


#: `triton_statistics.window_statistics` once `use_triton` was called.
_by_triton: Callable[..., tuple[Tensor, Tensor]] | None = None


def use_triton(on: bool = True) -> None:
    """Find the statistics of images on GPUs by one Triton kernel (extra 'triton') from now on."""
    global _by_triton
    if on:
        try:
            from cupola.nn.triton_statistics import window_statistics
        except ImportError:
            raise PlanError(
                "use_triton needs Triton, which is not installed: pip install 'cupola[triton]'"
            ) from None
    _by_triton = window_statistics if on else None


def _is_for_triton(x: Tensor, at: Geometry) -> bool:
    plain = not torch._C._functorch.is_functorch_wrapped_tensor(x) and not is_recorded()
    return x.is_cuda and plain and len(at.kernel) == 2 and x.dtype != torch.float64


def _statistics(x: Tensor, drop: Tensor | None, at: Geometry) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(var + eps) of every window; drop: True where the copy has a zero.

    A window's variance is the mean variance over channels plus the variance of channel means, which
    are shifted by their mean over the sample: nothing large is subtracted.
    """
    if _by_triton is not None and _is_for_triton(x, at):
        return _by_triton(x, drop, at)
    y, scale = x, 1.0
    if drop is not None:
        y, scale = torch.where(drop, 0.0, x), 1 / (1 - at.dropout)
    wide = torch.promote_types(x.dtype, torch.float32)
    means = y.mean(1, keepdim=True, dtype=wide)
    apart = y - means if drop is None or y.dtype != wide else y.sub_(means)
    each = apart.new_full((1, x.shape[1]), 1 / x.shape[1])
    spread = (each @ apart.pow_(2).flatten(2)).view_as(means)  # as a product: twice as fast as mean
    if scale != 1:
        means, spread = means * scale, spread * scale**2
    shift = means.mean(tuple(range(1, x.dim())), keepdim=True)
    if any(at.sides):
        means, spread = F.pad(means, at.sides), F.pad(spread, at.sides)
    means = means - shift
    filtered = _box(torch.cat([means, spread + means.square()], 1), at)
    mu, second = filtered[:, :1], filtered[:, 1:]
    variance = (second - mu.square()).clamp_min(0)
    mu = mu + shift
    if drop is None and at.dropout:
        variance = (variance + at.dropout * mu.square()) / (1 - at.dropout)
    return mu, variance.add(at.eps).rsqrt()


def _box(maps: Tensor, at: Geometry) -> Tensor:
    """Means over windows of padded maps (n, maps, ...)."""
    return _summed(maps, at.kernel, at.stride, at.dilation) / math.prod(at.kernel)


def _summed(maps: Tensor, kernel: Sizes, stride: Sizes, dilation: Sizes) -> Tensor:
    """Sums over windows, one dimension after the other: shifted slices are added."""
    for dim, (size, step, apart) in enumerate(zip(kernel, stride, dilation), 2):
        places = (maps.shape[dim] - apart * (size - 1) - 1) // step + 1
        every = [slice(None)] * maps.dim()
        total = None
        for i in range(0, apart * size, apart):
            every[dim] = slice(i, i + (places - 1) * step + 1, step)
            part = maps[tuple(every)]
            total = part if total is None else total + part
        assert total is not None
        maps = total
    return maps


def _spread_back(maps: Tensor, sizes: Sizes, at: Geometry) -> Tensor:
    """For each input position the sum over the windows that hold it; (n, maps, *sizes)."""
    if at.stride == at.ones:  # windows that hold a position are a window of windows
        around = tuple(s - 1 for s in reversed(at.spans) for _ in range(2))
        found = _summed(F.pad(maps, around), at.kernel, at.ones, at.dilation)
    else:
        weight = maps.new_ones((1, 1, *at.kernel))
        rest = [(s + 2 * p - k) % t for s, p, k, t in zip(sizes, at.padding, at.spans, at.stride)]
        one = maps.reshape(-1, 1, *maps.shape[2:])
        found = torch.convolution(
            one, weight, None, at.stride, at.zeros, at.dilation, True, rest, 1
        )  # fmt: skip
        found = found.reshape(*maps.shape[:2], *found.shape[2:])
    for dim, (before, size) in enumerate(zip(at.padding, sizes), 2):
        found = found.narrow(dim, before, size)
    return found


def _along(values: Tensor, like: Tensor) -> Tensor:
    """Values (channels,) next to maps of this many dimensions."""
    return values.view(1, -1, *[1] * (like.dim() - 2))


class StatisticsFunction(torch.autograd.Function):
    """(mu, scale): mean and 1/sqrt(var + eps) of every window; keeps x, the mask, mu and scale."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, drop: Tensor | None, at: Geometry) -> tuple[Tensor, Tensor]:
        return _statistics(x, drop, at)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, drop, ctx.at = inputs
        ctx.save_for_backward(x, drop, *output)

    @staticmethod
    def backward(ctx: Any, g_mu: Tensor, g_scale: Tensor) -> tuple[Tensor | None, ...]:
        x, drop, mu, scale = ctx.saved_tensors
        g_var = -0.5 * scale**3 * g_scale
        if drop is None and ctx.at.dropout:
            g_mu, g_var = _of_expected(g_mu, g_var, mu, ctx.at.dropout)
        a, b = _to_input(g_mu, g_var, mu, x, ctx.at)
        keep = 1.0 if drop is None else 1 / (1 - ctx.at.dropout)
        g_x = torch.addcmul((a * keep).to(x.dtype), x, (b * keep**2).to(x.dtype))
        return g_x if drop is None else torch.where(drop, 0.0, g_x), None, None


def _of_expected(g_mu: Tensor, g_var: Tensor, mu: Tensor, dropout: float) -> tuple[Tensor, Tensor]:
    """From gradients of the expected statistics to those of the windows' own."""
    g_var = g_var / (1 - dropout)
    return g_mu + 2 * dropout * mu * g_var, g_var


def _to_input(
    g_mu: Tensor, g_var: Tensor, mu: Tensor, x: Tensor, at: Geometry
) -> tuple[Tensor, Tensor]:
    """The gradient with respect to the windows' elements d is a + b d: a and b (n, 1, *sizes)."""
    number = x.shape[1] * math.prod(at.kernel)
    slope = g_var * (2 / number)
    level = mu.mean(tuple(range(1, mu.dim())), keepdim=True)  # any would do; near d rounds least
    both = torch.cat([g_mu / number - slope * (mu - level), slope], 1)
    a, b = _spread_back(both, tuple(x.shape[2:]), at).chunk(2, 1)
    return a - level * b, b


class AdjustedFunction(torch.autograd.Function):
    """(c - mu * total) * scale + bias, from a convolution c; keeps its output instead of c.

    total: sums of the filters' weights, (O,).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(c: Tensor, total: Tensor, bias: Tensor | None, mu: Tensor, scale: Tensor) -> Tensor:
        out = torch.addcmul(c, mu, _along(total.to(mu.dtype), c), value=-1)
        if bias is None:
            return out.mul_(scale).to(c.dtype)
        return torch.addcmul(_along(bias.to(mu.dtype), out), out, scale).to(c.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        total, bias, mu, scale, out = ctx.saved_tensors
        wants, positions = ctx.needs_input_grad, (0, *range(2, g.dim()))
        g_total = g_mu = g_scale = None
        if wants[3] or wants[4]:
            rows = [total] + ([] if bias is None else [bias])
            sums = (torch.stack(rows) @ g.flatten(2)).unflatten(2, g.shape[2:]).to(mu.dtype)
            g_mu = -scale * sums[:, :1]
            g_scale = (g * out).sum(1, keepdim=True, dtype=mu.dtype)
            g_scale = (g_scale if bias is None else g_scale - sums[:, 1:]) / scale
        g_c = g * scale.to(g.dtype)
        if wants[1]:
            g_total = -(g_c.flatten(2) @ mu.to(g.dtype).flatten(2).mT).sum((0, 2))
        g_bias = g.sum(positions) if bias is not None and wants[2] else None
        return g_c, g_total, g_bias, g_mu, g_scale


class NormalisedFunction(torch.autograd.Function):
    """(u - mu) * scale over dimensions `dims`, with statistics of the dropped-out u, or expected
    ones where there is no mask."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        u: Tensor, drop: Tensor | None, dropout: float, dims: Sizes, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        wide = torch.promote_types(u.dtype, torch.float32)
        d = u if drop is None else torch.where(drop, 0.0, u) / (1 - dropout)
        mu = d.mean(dims, keepdim=True, dtype=wide)
        variance = (d - mu).pow_(2).mean(dims, keepdim=True)
        if drop is None and dropout:
            variance = (variance + dropout * mu.square()) / (1 - dropout)
        scale = variance.add(eps).rsqrt()
        return ((u - mu) * scale).to(u.dtype), mu, scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        u, drop, ctx.dropout, ctx.dims, _ = inputs
        ctx.save_for_backward(u, drop, *output[1:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(
        ctx: Any, g: Tensor | None, g_mu: Tensor | None, g_scale: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        u, drop, mu, scale = ctx.saved_tensors
        dims, keep = ctx.dims, 1 / (1 - ctx.dropout)
        number = math.prod(u.shape[d] for d in dims)
        g = torch.zeros_like(u) if g is None else g
        mean = -scale * g.sum(dims, keepdim=True, dtype=mu.dtype)
        variance = -0.5 * scale**3 * (g * (u - mu)).sum(dims, keepdim=True)
        if g_mu is not None:
            mean = mean + g_mu
        if g_scale is not None:
            variance = variance - 0.5 * scale**3 * g_scale
        if drop is None and ctx.dropout:
            mean, variance = _of_expected(mean, variance, mu, ctx.dropout)
        mean, slope = mean / number, variance * (2 / number)
        if drop is None:
            through = mean + slope * (u - mu)
        else:
            through = torch.where(drop, 0.0, keep * (mean + slope * (keep * u - mu)))
        return (g * scale + through).to(g.dtype), None, None, None, None


def drawn(shape: Sizes, dropout: float, device: torch.device) -> Tensor:
    """A mask, True with probability `dropout` in steps of 2^-16, from torch's generator.

    Four draws from each 64-bit number: three times as fast as `bernoulli_` on a CPU.
    """
    if is_recorded():  # other runtimes know no views of bits
        return torch.rand(shape, device=device) < dropout
    size = math.prod(shape)
    numbers = torch.randint(
        -(2**63), 2**63 - 1, (-(-size // 4),), dtype=torch.int64, device=device
    )  # fmt: skip
    bits = numbers.view(torch.int16)[:size].view(shape)
    return bits < round(dropout * 2**16) - 2**15


def is_recorded() -> bool:
    """Whether the call is exported or traced: then it consists of plain operations."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def windows(x: Tensor, at: Geometry) -> Tensor:
    """A view of all windows of padded x: (n, C, *positions, *kernel)."""
    for dim, (size, step, apart) in enumerate(zip(at.spans, at.stride, at.dilation), 2):
        x = x.unfold(dim, size, step)[..., ::apart]
    return x
