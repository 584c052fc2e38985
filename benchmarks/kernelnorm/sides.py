"""What is compared: one forward and backward pass of a layer or a network, with each normalisation.

The side "unfold" is the published formulation: windows of the padded input, a view, give their
statistics. "unfold, copied" is the same with the windows copied first, which is faster on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.nn import build
from cupola.nn.kernelnorm import KNConv2d

BATCH = 32
WORKLOADS = ("layer", "resnet8", "knresnet13")
SIDES = ("group", "batch", "kernel", "kernel, no dropout", "unfold", "unfold, copied")
WIDTH = 64  # of the single layer, on images of 32x32


class UnfoldedKNConv2d(nn.Conv2d):
    """conv(x) adjusted by mean and variance of the windows of the dropped-out input."""

    def __init__(self, layer: KNConv2d, copied: bool) -> None:
        super().__init__(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding
        )
        self.dropout, self.copied = layer.dropout, copied
        self.load_state_dict(layer.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        if self.copied:
            out = F.conv2d(x, self.weight, None, self.stride, self.padding)
            variance, mean = self.of_copies(F.dropout(x, self.dropout))
        else:
            high, wide = self.padding
            padded = F.pad(x, (wide, wide, high, high))
            out = F.conv2d(padded, self.weight, None, self.stride)
            variance, mean = self.of_views(F.dropout(padded, self.dropout))
        shape = (len(x), 1, *out.shape[2:])
        total = self.weight.sum((1, 2, 3)).view(1, -1, 1, 1)
        scale = torch.rsqrt(variance.reshape(shape) + 1e-5)
        return (out - mean.reshape(shape) * total) * scale + self.bias.view(1, -1, 1, 1)

    def of_copies(self, x: Tensor) -> tuple[Tensor, Tensor]:
        windows = F.unfold(x, self.kernel_size, padding=self.padding, stride=self.stride)
        return torch.var_mean(windows, 1, correction=0)

    def of_views(self, padded: Tensor) -> tuple[Tensor, Tensor]:
        for dim, size, step in zip((2, 3), self.kernel_size, self.stride):
            padded = padded.unfold(dim, size, step)
        return torch.var_mean(padded, (1, 4, 5), correction=0)


def unfolded(module: nn.Module, copied: bool) -> nn.Module:
    """The same module with its kernel-normalised convolutions in the published formulation."""
    for name, part in module.named_children():
        if isinstance(part, KNConv2d):
            setattr(module, name, UnfoldedKNConv2d(part, copied))
        else:
            unfolded(part, copied)
    return module


def network(workload: str, side: str) -> nn.Module:
    """A freshly made module in training mode."""
    norm = side if side in ("group", "batch") else "kernel"
    calm = {"kernel_dropout": 0.0, "last_dropout": 0.0} if side == "kernel, no dropout" else {}
    if workload == "layer":
        dropout = 0.0 if calm else 0.1
        if norm == "kernel":
            module = nn.Sequential(KNConv2d(WIDTH, WIDTH, 3, padding=1, dropout=dropout))
        else:
            after = nn.GroupNorm(2, WIDTH) if norm == "group" else nn.BatchNorm2d(WIDTH)
            module = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False), after)
    else:
        module = build(workload, (3, 32, 32), 10, 0, norm=norm, activation="relu", **calm)
    return unfolded(module, "copied" in side) if "unfold" in side else module


def step(workload: str, side: str) -> Callable[[], None]:
    """A forward and a backward pass, over and over; a single layer also passes the gradient on."""
    module = network(workload, side)
    generator = torch.Generator().manual_seed(0)
    if workload == "layer":
        x = torch.rand(BATCH, WIDTH, 32, 32, generator=generator, requires_grad=True)
        g = torch.randn(BATCH, WIDTH, 32, 32, generator=generator)
    else:
        x = torch.rand(BATCH, 3, 32, 32, generator=generator)
        y = torch.arange(BATCH) % 10

    def run() -> None:
        module.zero_grad()
        x.grad = None
        if workload == "layer":
            module(x).backward(g)
        else:
            F.cross_entropy(module(x), y).backward()

    return run
