"""Inputs and weights made to break a clip: huge, tiny, cancelling, repeated, not finite.

A coordinator may send any weights, and data are whatever they are, so a clip must hold for all of
them. These are a search, not a proof: what they do not find may still exist.
"""

from __future__ import annotations

import numpy as np
import torch

from cupola.base.randomness import generator
from cupola.data.dataset import Dataset
from cupola.federation.message import Arrays
from cupola.training.workspace import Problem

SIZES = (1, 2, 3, 5, 4, 1, 8, 17, 2, 33, 3, 68)  # of batches: other kernels for other sizes
INPUTS = ("ordinary", "huge", "three", "cancelling", "spread", "tiny", "three", "constant",
          "one-hot", "repeated", "three", "vast", "not finite")  # fmt: skip
TOKENS = ("ordinary", "repeated", "random", "alternating", "three")
WEIGHTS = ("first", "final", "loud", "cancelling", "spread", "even", "quiet", "vast", "zero")
BIG, SMALL = 2.0**60, 2.0**20  # SMALL^2 is lost beside BIG^2, also in float64


def inputs(problem: Problem, data: Dataset, kind: str, n: int, seed: int) -> Dataset:
    """n examples of this kind, model-ready, with targets that any model gets wrong."""
    random = generator(seed, f"crafted {kind}")
    rows = data.subset(random.integers(len(data), size=n)).plain()
    x, y = rows.inputs().clone(), rows.y.clone()
    if problem.tokens is not None:
        return Dataset(_tokens(problem.tokens, x, kind, random), _targets(problem, y, random))
    x = torch.from_numpy(_numbers(x.double().numpy(), kind, random)).to(x.dtype)
    return Dataset(x, _targets(problem, y, random))


def opposite(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """An augmentation that takes the large numbers of an example away from its other copies."""
    del generator
    return torch.where(x.abs() >= BIG, -x, torch.zeros_like(x)) if x.is_floating_point() else x


def _tokens(
    vocabulary: int, x: torch.Tensor, kind: str, random: np.random.Generator
) -> torch.Tensor:
    shape = tuple(x.shape)
    if kind == "repeated":  # the same token at every place: its gradients add up
        return torch.from_numpy(random.integers(vocabulary, size=(shape[0], 1))).expand(shape)
    if kind == "random":
        return torch.from_numpy(random.integers(vocabulary, size=shape))
    if kind == "three":  # whose embeddings take each other away, with 'even' weights
        few = np.concatenate([np.arange(3), random.integers(vocabulary, size=shape[1])])
        return torch.from_numpy(np.resize(few[: shape[1]], shape)).contiguous()
    if kind == "alternating":
        pair = random.integers(vocabulary, size=(shape[0], 2))
        return torch.from_numpy(np.resize(pair.T, (shape[1], shape[0])).T.copy())
    return x


def _targets(problem: Problem, y: torch.Tensor, random: np.random.Generator) -> torch.Tensor:
    if y.is_floating_point():
        return (y.double() + 1e3 * torch.from_numpy(random.standard_normal(tuple(y.shape)))).to(y)
    drawn = random.integers(problem.classes or 2, size=tuple(y.shape))
    return torch.from_numpy(np.asarray(drawn)).to(y)


def _numbers(x: np.ndarray, kind: str, random: np.random.Generator) -> np.ndarray:
    normal = random.standard_normal(x.shape)
    flat = normal.reshape(len(x), -1)
    if kind == "huge":
        return 1e4 * normal
    if kind == "vast":
        return 1e18 * normal
    if kind == "tiny":
        return 1e-18 * normal
    if kind == "spread":
        return normal * np.exp(8 * random.standard_normal(x.shape))
    if kind == "constant":
        return np.full_like(x, 3.0) * 10.0 ** random.integers(0, 6)
    if kind == "one-hot":
        one = np.zeros_like(flat)
        one[np.arange(len(x)), random.integers(flat.shape[1], size=len(x))] = 1e6
        return one.reshape(x.shape)
    if kind == "cancelling":  # halves that take each other away, at different sizes
        half = flat.shape[1] // 2
        flat[:, half : 2 * half] = -flat[:, :half] * (1 + 1e-6)
        return 1e3 * flat.reshape(x.shape)
    if kind == "repeated":  # one row of every example at all places
        return np.broadcast_to(normal[..., :1], x.shape) * 1e2
    if kind == "three":  # a norm from products loses the third, a sum does not
        three = np.zeros_like(x)
        for row in three:  # at three places of one line through the input, evenly apart
            axis = int(random.choice([a for a, size in enumerate(row.shape) if size >= 3] or [0]))
            line = [int(random.integers(size)) for size in row.shape]
            apart = int(random.integers(1, max(2, (row.shape[axis] + 1) // 2)))
            first = int(random.integers(max(1, row.shape[axis] - 2 * apart)))
            places = range(first, row.shape[axis], apart)[:3]
            for place, value in zip(places, random.permutation([BIG, -BIG, SMALL])):
                line[axis] = place
                row[tuple(line)] = value
        return three
    if kind == "not finite":
        flat[0, 0] = (np.nan, np.inf, 1e38)[random.integers(3)]
        return flat.reshape(x.shape)
    return x


def weights(model: Arrays, kind: str, seed: int) -> Arrays:
    """A model of this kind in the layout of one that the run had."""
    random = generator(seed, f"weights {kind}")
    made = dict(model)
    for name, array in model.items():
        if not name.startswith("model/") or kind in ("first", "final"):
            continue
        normal = random.standard_normal(array.shape)
        if kind == "loud":
            values = array * 30.0 + 0.1 * normal
        elif kind == "vast":
            values = array * 1e6 + normal
        elif kind in ("quiet", "zero"):
            values = array * (1e-6 if kind == "quiet" else 0.0)
        elif kind == "spread":
            values = array * np.exp(3 * normal)
        elif kind == "even":  # every place counts alike
            values = np.full(array.shape, 2.0**-3)
            if array.ndim > 1 and len(array) >= 3:
                values[:3] = np.array([BIG, -BIG, SMALL]).reshape(3, *[1] * (array.ndim - 1))
        else:  # cancelling: every other row is the one before, nearly, taken away
            values = normal * max(float(np.abs(array).mean()), 1e-3) * 10
            if array.ndim > 1:
                half = len(values) // 2
                values[1 : 2 * half : 2] = -values[0 : 2 * half : 2] * (1 + 1e-6)
        made[name] = np.asarray(values, array.dtype)
    return made
