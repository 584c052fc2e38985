"""Tensors from a seed and their name, bit for bit the same on every machine (FedPT, 001).

A tensor's values depend on (seed, name, shape) alone: neither on the order of tensors nor on the
device, the engine or the versions of torch and numpy. Words come from Philox4x32-10, a counter in
integer arithmetic; normal numbers from the inverse of their distribution function by Wichura's
rational approximations (AS 241), with a logarithm of our own. All of it is float64 addition,
multiplication, division and square root, one at a time, which IEEE 754 rounds in one way only;
library functions (log, cos) differ between machines in their last bits.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import nn

from cupola.base.randomness import philox

VERSION = b"cupola frozen tensor 1"  # part of every key: another way of drawing gets another number
PIECE = 1 << 16  # numbers made at a time: they stay in the cache

# AS 241 (Wichura 1988), numerators and denominators, highest power first.
_MIDDLE = (
    (
        2.5090809287301226727e3, 3.3430575583588128105e4, 6.7265770927008700853e4,
        4.5921953931549871457e4, 1.3731693765509461125e4, 1.9715909503065514427e3,
        1.3314166789178437745e2, 3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3, 2.8729085735721942674e4, 3.9307895800092710610e4,
        2.1213794301586595867e4, 5.3941960214247511077e3, 6.8718700749205790830e2,
        4.2313330701600911252e1, 1.0,
    ),
)  # fmt: skip
_TAIL = (
    (
        7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1,
        1.27045825245236838258e0, 3.64784832476320460504e0, 5.76949722146069140550e0,
        4.63033784615654529590e0, 1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2,
        1.48103976427480074590e-1, 6.89767334985100004550e-1, 1.67638483018380384940e0,
        2.05319162663775882187e0, 1.0,
    ),
)  # fmt: skip
_LN2 = 0.6931471805599453
_LOG = tuple(1.0 / n for n in range(23, 0, -2))  # of 2 artanh(t) = log((1 + t) / (1 - t))


def normals(seed: int, name: str, count: int) -> np.ndarray:
    """So many standard normal numbers (float64) of the tensor `name`; the first are always the
    same, however many are asked for. seed: 0 .. 2^63 - 1."""
    hashed = hashlib.blake2b(b"%s\0%d\0" % (VERSION, seed) + name.encode(), digest_size=8).digest()
    key = (int.from_bytes(hashed[:4], "little"), int.from_bytes(hashed[4:], "little"))
    found = np.empty(count)
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        blocks = np.arange(start // 4, -(-stop // 4), dtype=np.uint64)
        counter = np.zeros((len(blocks), 4), np.uint32)
        counter[:, 0] = blocks & np.uint64(0xFFFFFFFF)
        counter[:, 1] = blocks >> np.uint64(32)
        words = philox(counter, key).reshape(-1)[: stop - start]
        found[start:stop] = _quantile(words)
    return found


def _quantile(words: np.ndarray) -> np.ndarray:
    """The normal quantile of (word + 1/2) / 2^32, of 32-bit words; at most 6.4 in magnitude."""
    u = (words + 0.5) * 2.0**-32
    q = u - 0.5
    r = 0.180625 - q * q
    found = q * _ratio(_MIDDLE, r)
    outer = np.flatnonzero(np.abs(q) > 0.425)
    below = np.minimum(u[outer], 1.0 - u[outer])
    tail = _ratio(_TAIL, np.sqrt(-_log(below)) - 1.6)
    found[outer] = np.where(q[outer] < 0, -tail, tail)
    return found


def _ratio(parts: Sequence[Sequence[float]], x: np.ndarray) -> np.ndarray:
    return _polynomial(parts[0], x) / _polynomial(parts[1], x)


def _polynomial(coefficients: Sequence[float], x: np.ndarray) -> np.ndarray:
    """Horner's rule, every step rounded: numpy multiplies and adds in two operations."""
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        np.multiply(value, x, out=value)
        np.add(value, coefficient, out=value)
    return value


def _log(x: np.ndarray) -> np.ndarray:
    """The natural logarithm, to some 1e-16, in basic operations: x = m 2^e, m near 1."""
    m, e = np.frexp(x)
    small = m < 0.7071067811865476
    m, e = np.where(small, m * 2.0, m), np.where(small, e - 1, e)
    t = (m - 1.0) / (m + 1.0)
    return e * _LN2 + (t + t) * _polynomial(_LOG, t * t)


# The values of a model's tensors


def deviation(module: nn.Module, name: str) -> float:
    """Standard deviation of a layer's Gaussian initialiser for its parameter `name`; 0: constant.

    He et al. (2015) by fan-in; embeddings N(0, 1); recurrent layers and attention as their uniform
    initialisers in torch have it. Biases are zero.
    """
    place, _, own = name.rpartition(".")
    layer, shape = module.get_submodule(place), module.get_parameter(name).shape
    if len(shape) < 2:
        return 0.0
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        return 1.0
    if isinstance(layer, nn.RNNBase | nn.RNNCellBase):
        return math.sqrt(1.0 / (3 * layer.hidden_size))
    if isinstance(layer, nn.MultiheadAttention) and own.endswith("proj_weight"):
        return math.sqrt(2.0 / (shape[0] + shape[1]))
    return math.sqrt(2.0 / math.prod(shape[1:]))


def constant(module: nn.Module, name: str) -> float:
    """What a parameter without deviation is filled with: what its layer fills it with (the scale of
    a normalisation, 1), or 0 where the layer draws it (torch's biases)."""
    values = module.get_parameter(name).detach().cpu().double().reshape(-1)
    first = float(values[0]) if len(values) else 0.0
    whole = bool((values == first).all()) and (len(values) > 1 or first in (0.0, 1.0))
    return first if whole else 0.0


def values(seed: int, name: str, shape: Sequence[int], scale: float, fill: float) -> np.ndarray:
    """A tensor in float64: normal numbers of this scale, or one constant."""
    if scale == 0.0:
        return np.full(tuple(shape), fill)
    return (normals(seed, name, math.prod(shape)) * scale).reshape(tuple(shape))


def orthonormal(seed: int, name: str, shape: Sequence[int]) -> np.ndarray:
    """A tensor in float64 whose rows (of its flattened form; columns, if it is tall) are
    orthonormal: normal numbers after Gram and Schmidt, twice, which is enough.

    Sums go by halves, elementwise additions that IEEE 754 rounds in one way: a library's dot
    product differs between machines in its last bits.
    """
    rows, columns = shape[0], math.prod(shape[1:])
    drawn = normals(seed, name, rows * columns).reshape(rows, columns)
    made = drawn.copy() if rows <= columns else np.ascontiguousarray(drawn.T)
    for i, row in enumerate(made):
        for _ in range(2):
            shares = _sum(made[:i] * row)
            row -= _sum((made[:i] * shares[:, None]).T)
        row /= np.sqrt(_sum(row * row))
    return (made if rows <= columns else made.T).reshape(tuple(shape))


def _sum(values: np.ndarray) -> np.ndarray:
    """Sums over the last dimension, by halves."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        rest = values[..., 2 * half :]
        values = np.concatenate([values[..., :half] + values[..., half : 2 * half], rest], -1)
    return values[..., 0] if values.shape[-1] else np.zeros(values.shape[:-1])


def checksum(tensors: Iterable[tuple[str, torch.Tensor]]) -> bytes:
    """16 bytes over names, types, shapes and all bits of tensors, in the order of their names."""
    found = hashlib.blake2b(VERSION, digest_size=16)
    for name, tensor in sorted(tensors, key=lambda pair: pair[0]):
        tensor, kind = tensor.detach().cpu().contiguous(), str(tensor.dtype).removeprefix("torch.")
        # numpy has no bfloat16: its bits stand for it
        array = (tensor.view(torch.int16) if kind == "bfloat16" else tensor).numpy()
        found.update(f"\0{name}\0{kind}\0{list(array.shape)}\0".encode())
        found.update(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes())
    return found.digest()
