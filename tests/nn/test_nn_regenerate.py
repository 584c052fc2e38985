"""Tensors from (seed, name): the same bits everywhere, and normal."""

import hashlib
import math

import numpy as np
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import kstest
from torch import nn

from cupola.nn import regenerate
from cupola.nn.regenerate import checksum, constant, deviation, normals, values

# (seed, name, shape, scale) -> sha256 of the little-endian bytes in float64 and float32.
GOLDEN = {
    (0, "0.weight", (4, 3, 3, 3), 0.25): ("e2bb746c54d6b21c", "63a997844ead9411"),
    (1, "6.weight", (512, 3136), (2 / 3136) ** 0.5): ("69179ac54485f00e", "9dbe5236ad7cdade"),
    (2**63 - 1, "layer4.1.conv2.weight", (64, 64, 3, 3), (2 / 576) ** 0.5): (
        "408472a0083a0097",
        "d24bf1579e8b29e1",
    ),
    (7, "encoder.2.linear1.weight", (2048, 96), (2 / 96) ** 0.5): (
        "783a1ea53f396cc8",
        "cbec30c7ab313f1d",
    ),
    (7, "Grüße", (5,), 1.0): ("addd862a7a49302a", "56d53b79523068d1"),
}


def bits(array: np.ndarray) -> str:
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("key", GOLDEN)
def test_the_same_bits_on_every_machine(key):
    seed, name, shape, scale = key
    made = values(seed, name, shape, scale, 0.0)
    assert (bits(made), bits(made.astype(np.float32))) == GOLDEN[key]


def test_first_numbers_by_hand():
    assert [x.hex() for x in normals(1, "6.weight", 3)] == [
        "-0x1.fb0cb2b4b2cf8p-2",
        "0x1.97ad1865da1a7p+0",
        "0x1.6398dd67f9207p-4",
    ]


def test_plain_python_gives_the_same_bits():
    """The slow, obvious way: whole numbers and single float operations, no numpy."""
    text = regenerate.VERSION + b"\x001\x00" + b"6.weight"
    hashed = hashlib.blake2b(text, digest_size=8).digest()
    k0, k1 = (int.from_bytes(hashed[i : i + 4], "little") for i in (0, 4))
    low = 0xFFFFFFFF

    def block(number):
        c, a, b = [number, 0, 0, 0], k0, k1
        for _ in range(10):
            p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [(q >> 32) ^ c[1] ^ a, q & low, (p >> 32) ^ c[3] ^ b, p & low]
            a, b = (a + 0x9E3779B9) & low, (b + 0xBB67AE85) & low
        return c

    def polynomial(coefficients, x):
        value = coefficients[0]
        for c in coefficients[1:]:
            value = value * x
            value = value + c
        return value

    def log(x):
        m, e = math.frexp(x)
        if m < 0.7071067811865476:
            m, e = m * 2.0, e - 1
        t = (m - 1.0) / (m + 1.0)
        return e * 0.6931471805599453 + (t + t) * polynomial(regenerate._LOG, t * t)

    def normal(word):
        u = (word + 0.5) * 2.0**-32
        q = u - 0.5
        if abs(q) <= 0.425:
            parts, x = regenerate._MIDDLE, 0.180625 - q * q
            return q * (polynomial(parts[0], x) / polynomial(parts[1], x))
        parts, x = regenerate._TAIL, math.sqrt(-log(min(u, 1.0 - u))) - 1.6
        tail = polynomial(parts[0], x) / polynomial(parts[1], x)
        return -tail if q < 0 else tail

    slow = [normal(word) for number in range(500) for word in block(number)]
    assert slow == normals(1, "6.weight", 2000).tolist()


def test_a_tensor_depends_on_seed_and_name_alone():
    whole = normals(3, "a", 200_000)
    assert np.array_equal(whole[:5], normals(3, "a", 5))
    assert np.array_equal(whole[: regenerate.PIECE + 3], normals(3, "a", regenerate.PIECE + 3))
    for other in (normals(4, "a", 5), normals(3, "b", 5), normals(3, "a ", 5)):
        assert not np.intersect1d(whole[:5], other).size


def test_numbers_are_normal():
    words = np.concatenate(
        [np.arange(3000), 2**32 - 1 - np.arange(3000), np.arange(0, 2**32, 99991)]
    )
    words = words.astype(np.uint32)
    exact = ndtri((words + 0.5) * 2.0**-32)
    assert np.abs(regenerate._quantile(words) - exact).max() < 1e-14
    drawn = normals(5, "x", 100_000)
    assert kstest(drawn, "norm").pvalue > 0.01
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) < 0.01
    assert abs(np.corrcoef(drawn, normals(5, "y", 100_000))[0, 1]) < 0.01


def test_deviations_are_those_of_the_layers():
    module = nn.ModuleDict(
        {
            "conv": nn.Conv2d(4, 6, 3, groups=2),
            "dense": nn.Linear(50, 20),
            "words": nn.Embedding(9, 4),
            "lstm": nn.LSTM(5, 8),
            "attend": nn.MultiheadAttention(6, 2),
            "norm": nn.GroupNorm(2, 6),
        }
    )
    known = {
        "conv.weight": (2 / 18) ** 0.5,
        "conv.bias": 0.0,
        "dense.weight": 0.2,
        "words.weight": 1.0,
        "lstm.weight_hh_l0": (1 / 24) ** 0.5,
        "attend.in_proj_weight": (2 / 24) ** 0.5,
        "norm.weight": 0.0,
    }
    assert {name: deviation(module, name) for name in known} == pytest.approx(known)
    assert constant(module, "norm.weight") == 1.0
    assert constant(module, "dense.bias") == 0.0  # torch draws it, which no seed of ours decides
    single = nn.Linear(3, 1)
    assert constant(single, "bias") == 0.0


def test_checksum_sees_every_bit_name_type_and_shape():
    tensors = {"a": torch.arange(6.0), "b": torch.zeros(2, 3)}
    found = checksum(tensors.items())
    assert found.hex() == "4e61c52d40316e0d20d34d9bbdea4841"
    assert checksum(reversed(tensors.items())) == found  # not the order
    for other in (
        {**tensors, "b": torch.zeros(3, 2)},
        {**tensors, "b": torch.tensor([[0.0, 0, 0], [0, 0, -0.0]])},
        {**tensors, "a": torch.arange(6.0, dtype=torch.float64)},
        {"a": tensors["a"], "c": tensors["b"]},
        {"a": tensors["a"]},
    ):
        assert checksum(other.items()) != found
