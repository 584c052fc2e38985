"""Masks cancel, can be read from any place, and are never the same twice."""

import inspect
from itertools import pairwise

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from cupola.errors import FederationError
from cupola.secure import mask_stream
from cupola.secure.canonical import pack
from cupola.secure.mask_stream import P, add_mask, mask_key, mask_residue, new_seed, stream

quick = settings(max_examples=60, deadline=None, derandomize=True)
TYPES = st.sampled_from([np.int16, np.int32, np.int64])
KEY = bytes(range(32))
HERE = {"study": "s", "step": 1, "attempt": 2, "array": "w"}


def reference(key, start, size):
    """The stream by its definition: AES-256 of the block's number, big-endian."""
    aes = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    blocks = range(start // 16, (start + size) // 16 + 1)
    whole = b"".join(aes.update(block.to_bytes(16, "big")) for block in blocks)
    return whole[start % 16 :][:size]


@given(st.binary(min_size=32, max_size=32), st.integers(0, 2**45), st.integers(0, 100))
@quick
def test_the_stream_is_aes_in_counter_mode(key, start, size):
    assert stream(key, start, size) == reference(key, start, size)


@given(TYPES, st.integers(0, 2**40), st.integers(0, 70))
@quick
def test_a_mask_is_its_piece_of_the_stream(kind, start, size):
    values = np.zeros(size, kind)
    add_mask(values, KEY, start)
    width = values.itemsize
    assert values.tobytes() == reference(KEY, start * width, size * width)


@pytest.mark.parametrize("kind", [np.int16, np.int32, np.int64])
def test_pieces_of_a_long_mask_fit_together(kind):
    size = 3 * mask_stream._PIECE // np.dtype(kind).itemsize + 5
    whole, parts = np.zeros(size, kind), np.zeros(size, kind)
    add_mask(whole, KEY)
    cuts = [0, 1, 77, size // 2 + 1, size // 2 + 2, size - 3, size]
    for start, stop in pairwise(cuts):
        add_mask(parts[start:stop], KEY, start)
    assert (whole == parts).all()
    assert len(np.unique(whole[:1000])) > 900


@given(st.data(), TYPES, st.integers(0, 20), st.integers(1, 6))
@quick
def test_masks_cancel_in_any_order(data, kind, size, sites):
    limits = np.iinfo(kind)
    element = st.integers(int(limits.min), int(limits.max))
    draw = st.lists(element, min_size=size, max_size=size)
    values = [np.array(data.draw(draw), kind) for _ in range(sites)]
    keys = [mask_key(bytes([i]) * 32, **HERE) for i in range(sites)]
    total = np.zeros(size, kind)
    for i in data.draw(st.permutations(range(sites))):
        masked = values[i].copy()
        add_mask(masked, keys[i])
        total += masked
    for i in data.draw(st.permutations(range(sites))):
        add_mask(total, keys[i], sign=-1)
    modulus = 2 ** (8 * total.itemsize)
    for j in range(size):
        assert (int(total[j]) - sum(int(v[j]) for v in values)) % modulus == 0


def test_a_seed_comes_from_the_system_and_nothing_can_choose_it():
    assert not inspect.signature(new_seed).parameters
    assert len({new_seed() for _ in range(100)}) == 100
    assert len(new_seed()) == 32


def test_every_use_has_its_own_key():
    seed = bytes(32)
    uses = [
        HERE,
        HERE | {"study": "s1"},
        HERE | {"step": 2},
        HERE | {"attempt": 1},
        HERE | {"array": "v"},
        {"study": "s", "step": 1, "attempt": 2, "array": "w\x00"},
        {"study": "s\x01", "step": 1, "attempt": 2, "array": "w"},
        {"study": "s", "step": 12, "attempt": 2, "array": "w"},
        {"study": "s1", "step": 2, "attempt": 2, "array": "w"},
    ]
    keys = [mask_key(seed, **use) for use in uses] + [mask_key(KEY, **HERE)]
    assert len(set(keys)) == len(keys)
    assert len({mask_residue(key) for key in keys}) == len(keys)
    assert all(0 <= mask_residue(key) < P for key in keys)


VALUES = st.recursive(
    st.none() | st.binary(max_size=3) | st.text("ab", max_size=3) | st.integers(-3, 300),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@given(st.lists(VALUES, max_size=3), st.lists(VALUES, max_size=3))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_packed_values_are_equal_only_if_the_values_are(a, b):
    assert (pack(*a) == pack(*b)) == (a == b)


def test_only_flat_integers_are_masked():
    for values in (np.zeros(3), np.zeros((2, 2), np.int32), np.zeros(2, np.uint64)):
        with pytest.raises(FederationError):
            add_mask(values, KEY)
