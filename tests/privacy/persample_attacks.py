"""Layers, weights and data made to break a clip: what one sample can change of a released sum.

`worst` is the search that the property tests and `benchmarks/dpsgd/bound.py` share. Layers of one
kind are given any input and, by a loss that is linear in the output, any output gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from persample_examples import Output
from torch import Tensor, nn

from cupola.nn import KNConv1d, KNConv2d, KNConv3d
from cupola.nn.normalisation import Affine
from cupola.nn.quantised import QuantisedLinear
from cupola.nn.reprogram import Border
from cupola.nn.sources import Preprocessing
from cupola.nn.trained_size import Around, Resized
from cupola.privacy.persample import PerSample

CLIP = 1.0
KINDS = (
    "ordinary",
    "spread",
    "huge",
    "tiny",
    "denormal",
    "cancelling",
    "nearly cancelling",
    "constant",
    "one-hot",
    "not finite",
)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x, need_weights=False)[0]


class Tied(nn.Module):
    """One weight in an embedding and in the linear map after it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.embedding(x))


class Raw(nn.Module):
    """A parameter that no rule sees."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6, 20))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.factor.T + self.factor.square().sum()


@dataclass(frozen=True)
class Case:
    """A layer, the shape of one input, and the axis of it along which terms may cancel."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    axis: int = -1
    tokens: int = 0
    windows: bool = False  # as large layers go
    rules: tuple[type, ...] = ()


def _conv(*args: Any, kind: type = nn.Conv2d, **options: Any) -> Callable[[], nn.Module]:
    return lambda: kind(*args, **options)


def _still(layer: Any) -> Any:
    layer.dropout = 0.0
    return layer


_SOURCE = Preprocessing(12, (0.5,) * 3, (0.25,) * 3)


def _in_8_bits() -> nn.Module:
    made = QuantisedLinear(torch.randint(-127, 128, (30, 40)), torch.ones(()), torch.zeros(30))
    assert made.bias is not None
    made.bias.requires_grad_(True)
    return made


CASES = {
    "linear in 8 bits, its bias": Case(_in_8_bits, (8, 40), 0, rules=(QuantisedLinear,)),
    "linear": Case(lambda: nn.Linear(40, 30), (40,), rules=(nn.Linear,)),
    "linear, 8 positions": Case(lambda: nn.Linear(40, 30), (8, 40), 0),
    "linear, 2 positions, wide": Case(lambda: nn.Linear(60, 60), (2, 60), 0),
    "linear, 64 positions": Case(lambda: nn.Linear(12, 10), (64, 12), 0),
    "conv 1x1 by Gram": Case(_conv(64, 80, 1), (64, 2, 2)),
    "conv 3x3 by Gram": Case(_conv(48, 64, 3, padding=1), (48, 3, 4), rules=(nn.Conv2d,)),
    "conv 3x3": Case(_conv(4, 6, 3), (4, 8, 8)),
    "conv 3x3 by windows": Case(_conv(6, 12, 3, padding=1), (6, 7, 7), windows=True),
    "conv 3x3, groups": Case(_conv(4, 8, 3, groups=2), (4, 8, 8)),
    "conv 1d": Case(_conv(4, 6, 3, kind=nn.Conv1d), (4, 16), rules=(nn.Conv1d,)),
    "conv 3d": Case(_conv(2, 4, 2, kind=nn.Conv3d), (2, 4, 4, 4), rules=(nn.Conv3d,)),
    "KNConv by Gram": Case(
        lambda: _still(KNConv2d(48, 64, 3, padding=1)), (48, 3, 4), rules=(KNConv2d,)
    ),
    "KNConv": Case(lambda: _still(KNConv2d(4, 6, 3)), (4, 8, 8)),
    "KNConv by windows": Case(
        lambda: _still(KNConv2d(6, 12, 3, padding=1)), (6, 7, 7), windows=True
    ),
    "KNConv 1d": Case(lambda: _still(KNConv1d(4, 6, 3)), (4, 16), rules=(KNConv1d,)),
    "KNConv 3d": Case(lambda: _still(KNConv3d(2, 4, 2)), (2, 4, 4, 4), rules=(KNConv3d,)),
    "embedding": Case(lambda: nn.Embedding(12, 8), (16,), 0, 12, rules=(nn.Embedding,)),
    "group norm": Case(lambda: nn.GroupNorm(2, 8), (8, 6, 6), rules=(nn.GroupNorm,)),
    "instance norm": Case(
        lambda: nn.InstanceNorm2d(4, affine=True), (4, 6, 6), rules=(nn.InstanceNorm2d,)
    ),
    "instance norm 1d": Case(
        lambda: nn.InstanceNorm1d(4, affine=True), (4, 16), rules=(nn.InstanceNorm1d,)
    ),
    "instance norm 3d": Case(
        lambda: nn.InstanceNorm3d(4, affine=True), (4, 2, 4, 4), rules=(nn.InstanceNorm3d,)
    ),
    "batch norm, fixed": Case(lambda: nn.BatchNorm2d(4).eval(), (4, 6, 6), rules=(nn.BatchNorm2d,)),
    "batch norm 1d, fixed": Case(lambda: nn.BatchNorm1d(9).eval(), (9,), rules=(nn.BatchNorm1d,)),
    "batch norm 3d, fixed": Case(
        lambda: nn.BatchNorm3d(4).eval(), (4, 2, 4, 4), rules=(nn.BatchNorm3d,)
    ),
    "layer norm": Case(lambda: nn.LayerNorm(12), (8, 12), 0, rules=(nn.LayerNorm,)),
    "RMS norm": Case(lambda: nn.RMSNorm(12), (8, 12), 0, rules=(nn.RMSNorm,)),
    "PReLU": Case(lambda: nn.PReLU(4), (4, 6, 6), rules=(nn.PReLU,)),
    "affine": Case(lambda: Affine(4), (4, 6, 6), rules=(Affine,)),
    "border": Case(lambda: Border(_SOURCE, 8), (3, 12, 12), rules=(Border,)),
    "border of a trained size": Case(lambda: Around(_SOURCE, 4), (4, 12, 12), rules=(Around,)),
    "trained size": Case(
        lambda: Resized((3, 9, 7), _SOURCE, 8, "zero", 4), (3, 9, 7), rules=(Resized,)
    ),
    "tied": Case(Tied, (16,), 0, 12),
    "attention": Case(Attention, (8, 16), 0, rules=(nn.MultiheadAttention,)),
    "LSTM": Case(lambda: Output(nn.LSTM(6, 9, batch_first=True)), (7, 6), 0, rules=(nn.LSTM,)),
    "GRU": Case(lambda: Output(nn.GRU(6, 9, batch_first=True)), (7, 6), 0, rules=(nn.GRU,)),
    "RNN": Case(lambda: Output(nn.RNN(6, 9, batch_first=True)), (7, 6), 0, rules=(nn.RNN,)),
    "vmap": Case(Raw, (8, 20), 0),
}

#: What is asked of the engine beside its own choice.
PATHS: dict[str, dict[str, Any]] = {
    "as it chooses": {},
    "no room": {"room": 0},
    "numbers alone": {"factors": False},
    "copies": {"copies": 2},
    "one by one": {"microbatch": 1},
}


@contextmanager
def conditions(case: Case, room: int | None) -> Iterator[None]:
    """Room for per-sample gradients, and whether layers count as large."""
    with ExitStack() as stack:
        if room is not None:
            stack.enter_context(patch("cupola.privacy.persample.clipping.ROOM", room))
        if case.windows:
            stack.enter_context(patch("cupola.privacy.persample.convolution.NUMBERS", 0))
        yield


def linear_loss(output: Tensor, y: Tensor) -> Tensor:
    """Its gradient at the output is y."""
    return (output * y).flatten(1).sum(1)


def crafted(kind: str, shape: tuple[int, ...], axis: int, chance: np.random.Generator) -> Tensor:
    """Numbers of a kind, (n, ...); axis: of one sample's."""
    x = chance.standard_normal(shape)
    axis += 1 if axis >= 0 else 0
    if kind == "spread":
        x *= np.exp(8 * chance.standard_normal(shape)) * 10.0 ** chance.uniform(-20, 14)
    elif kind == "huge":
        x *= 10.0 ** chance.uniform(12, 37)
    elif kind == "tiny":
        x *= 10.0 ** chance.uniform(-30, -12)
    elif kind == "denormal":
        x *= 10.0 ** chance.uniform(-45, -37)
    elif kind.endswith("cancelling"):
        half = shape[axis] // 2
        first = np.take(x, range(half), axis) * 10.0 ** chance.uniform(-6, 12)
        near = 1 if kind == "cancelling" else 1 + 6e-8 * chance.integers(-2, 3)
        sign = chance.choice([-1.0, 1.0])
        rest = np.take(x, range(2 * half, shape[axis]), axis)
        x = np.concatenate([first, sign * near * first, rest], axis)
    elif kind == "constant":
        x = np.broadcast_to(10.0 ** chance.uniform(-20, 20), shape).copy()
    elif kind == "one-hot":
        flat = np.zeros((shape[0], math.prod(shape[1:])))
        flat[np.arange(shape[0]), chance.integers(0, flat.shape[1], shape[0])] = (
            10.0 ** chance.uniform(-30, 37)
        )
        x = flat.reshape(shape)
    elif kind == "not finite":
        bad = chance.choice([np.inf, -np.inf, np.nan, 3e38], shape)
        x = np.where(chance.random(shape) < 0.02, bad, x)
    with np.errstate(over="ignore", under="ignore"):
        return torch.from_numpy(x.astype(np.float32))


def difference(engine: PerSample, x: Tensor, y: Tensor, i: int, copies: int = 1) -> float:
    """|sum with sample i - sum without it| over the clip, in float64."""
    kept = torch.ones(len(x), dtype=torch.bool)
    kept[i * copies : (i + 1) * copies] = False
    both = [
        engine.clipped_sum(*data, CLIP, multiplicity=copies)
        for data in ((x, y), (x[kept], y[kept]))
    ]
    moved = torch.cat(
        [(a.double() - b.double()).flatten() for a, b in zip(*(s.sums for s in both))]
    )
    found = float(moved.norm()) / CLIP
    return found if math.isfinite(found) else math.inf


def tries(name: str, count: int, sizes: list[int], seed: int = 0, **path: Any) -> Iterator[float]:
    """What one sample changes, over the clip, with crafted weights and data."""
    case, copies = CASES[name], path.pop("copies", 1)
    chance = np.random.default_rng([seed, *name.encode()])
    torch.manual_seed(seed)
    module = case.make()
    with conditions(case, path.pop("room", None)):
        engine = PerSample(module, linear_loss, **path)
        for number in range(count):
            n = sizes[number % len(sizes)]
            kinds = [KINDS[number % len(KINDS)], *chance.choice(KINDS, 2)]
            if kinds[0].endswith("cancelling"):
                kinds[1] = kinds[0]  # the same terms twice, with opposite signs
            with torch.no_grad():
                for p in filter(torch.is_floating_point, module.parameters()):
                    p.copy_(crafted(kinds[2], (1, *p.shape), -1, chance)[0])
            if case.tokens:
                x = torch.from_numpy(chance.integers(0, case.tokens, (n * copies, *case.shape)))
                x[::3] = x[0, 0]  # repeated tokens
            else:
                x = crafted(kinds[0], (n * copies, *case.shape), case.axis, chance)
            with torch.no_grad():
                shape = tuple(module(x[:1]).shape[1:])
            y = crafted(kinds[1], (n * copies, *shape), case.axis, chance)
            yield difference(engine, x, y, int(chance.integers(n)), copies)


def worst(name: str, count: int, sizes: list[int], seed: int = 0, **path: Any) -> float:
    return max(tries(name, count, sizes, seed, **path))


def switch(width: int = 64, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """Two dense layers that make a sample's gradient of the rounding of one sum: its terms cancel
    exactly, what is left of them depends on the order of additions, and is made large."""
    chance = torch.Generator().manual_seed(seed)
    module = nn.Sequential(nn.Linear(2 * width, width, bias=False), nn.Tanh(), nn.Linear(width, 2))
    own = torch.randn(width, width, generator=chance) * 1e8
    order = torch.randperm(width, generator=chance)
    with torch.no_grad():
        module[0].weight.copy_(torch.cat([own, -own[:, order]], 1))
        module[2].weight.copy_(torch.randn(2, width, generator=chance))
    x = torch.randn(width, generator=chance)
    return module, torch.cat([x, x[order]]).expand(71, -1).contiguous(), torch.ones(71, 2)
