"""Witnesses of totals: they add up, and fit one total of one set of sites under one key."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cupola.secure.encoding import entry
from cupola.secure.mask_stream import P
from cupola.secure.witness import from_limbs, pad, question_key, tag, to_limbs

KEY = bytes(range(32))
LAYOUT = (
    entry("counts", (40,), "int", 1000, 5),
    entry("sums", (3, 7), "float", 1e6, 5),
)


def integers(seed, sites=3):
    random = np.random.Generator(np.random.PCG64(seed))
    return [
        {e: random.integers(-1000, 1000, e.size).astype(e.dtype) for e in LAYOUT}
        for _ in range(sites)
    ]


def total(values):
    return {e: np.sum([v[e] for v in values], axis=0).astype(e.dtype) for e in LAYOUT}


@given(st.integers(0, 2**32), st.sets(st.integers(0, 40), min_size=1, max_size=6))
def test_witnesses_of_sites_add_up_to_the_totals(seed, sites):
    values = integers(seed, len(sites))
    limbs = sum(to_limbs(tag(KEY, v, [s])) for v, s in zip(values, sorted(sites)))
    assert from_limbs(limbs) == tag(KEY, total(values), sorted(sites))


@given(st.integers(0, P - 1))
def test_limbs_hold_every_residue(residue):
    assert from_limbs(to_limbs(residue)) == residue


@given(
    st.integers(0, 2**32),
    st.integers(0, 39),
    st.integers(-(2**12), 2**12).filter(bool),
    st.sampled_from(LAYOUT),
)
def test_no_other_total_fits(seed, place, change, which):
    values = total(integers(seed))
    own = tag(KEY, values, [0, 1, 2])
    values[which][place % which.size] += change
    assert tag(KEY, values, [0, 1, 2]) != own


@pytest.mark.parametrize("bit", range(63))
def test_a_change_of_any_bit_is_noticed(bit):
    values = total(integers(1))
    own = tag(KEY, values, [0, 1, 2])
    values[LAYOUT[1]][0] ^= 1 << bit
    assert tag(KEY, values, [0, 1, 2]) != own


def test_multiples_and_mixtures_of_answers_do_not_fit():
    """What a coordinator could do with plain sums, where it sees every answer and its witness."""
    values = integers(3)
    tags = [tag(KEY, v, [s]) for s, v in enumerate(values)]
    for factors in ((2, 2, 2), (1, 1, 2), (2, 0, 1), (0, 1, 1), (-1, 1, 3)):
        mixed = {e: sum(f * v[e] for f, v in zip(factors, values)) for e in LAYOUT}
        mixed = {e: v.astype(e.dtype) for e, v in mixed.items()}
        made = sum(f * t for f, t in zip(factors, tags)) % P
        for sites in ([0, 1, 2], [0, 1], [1, 2], [0, 2]):
            fits = made == tag(KEY, mixed, sites)
            assert fits == (factors == (0, 1, 1) and sites == [1, 2])  # that is a real total


def test_a_key_is_for_one_question():
    facts = {"study": "a", "roster": b"r" * 32, "step": 1, "asked": b"q" * 32, "scales": b"s" * 32}
    keys = {question_key(KEY, **facts)}
    for name, other in (
        ("study", "b"), ("roster", b"x" * 32), ("step", 2), ("asked", b"x" * 32),
        ("scales", b"x" * 32),
    ):  # fmt: skip
        keys.add(question_key(KEY, **{**facts, name: other}))
    keys.add(question_key(bytes(32), **facts))
    assert len(keys) == 7
    assert len({pad(key, site) for key in keys for site in range(5)}) == 35
