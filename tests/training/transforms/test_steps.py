"""Transforms one by one: lengths, averages, memory, and the reference that is written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.linalg import hadamard

from cupola.federation import Spec
from cupola.federation.compact import from_words
from cupola.training.transforms import Quantise, Sparsify, TopK, Way, transform
from cupola.training.transforms.quantise import coarse, coarse_words, refined, rounded
from cupola.training.transforms.rotation import _hadamard, rotate, unrotate

RANDOM = np.random.default_rng(1)


def vector(size: int = 1000) -> np.ndarray:
    return RANDOM.normal(size=size) * RANDOM.random(size)


@pytest.mark.parametrize("size", [1, 2, 4, 8, 64, 512])
def test_the_fast_transform_is_the_matrix(size: int) -> None:
    x = vector(size)
    y = x.copy()
    _hadamard(y)
    assert y == pytest.approx(hadamard(size) @ x / math.sqrt(size), abs=1e-12)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 100, 1023, 1025, 3000])
def test_a_rotation_keeps_lengths_turns_back_and_is_linear(size: int) -> None:
    x, y = vector(size), vector(size)
    assert np.linalg.norm(rotate(x, 5)) == pytest.approx(np.linalg.norm(x))
    assert unrotate(rotate(x, 5), 5) == pytest.approx(x, abs=1e-12)
    assert rotate(x + 2 * y, 5) == pytest.approx(rotate(x, 5) + 2 * rotate(y, 5), abs=1e-12)


def test_a_rotation_spreads_what_stands_in_one_place() -> None:
    size = 3000
    for place in (0, 1500, size - 1):
        spike = np.zeros(size)
        spike[place] = 1.0
        assert np.abs(rotate(spike, 9)).max() < 6 / math.sqrt(size)
    assert (rotate(spike, 9) != rotate(spike, 10)).any()


def test_rounding_is_right_on_average_and_off_by_less_than_a_step() -> None:
    steps = np.repeat([0.0, 0.25, -1.75, 3.0], 20_000)
    found = rounded(steps, np.random.default_rng(2))
    assert np.abs(found - steps).max() < 1
    means = found.reshape(4, -1).mean(1)
    assert means == pytest.approx([0.0, 0.25, -1.75, 3.0], abs=0.02)


@pytest.mark.parametrize("scale", [0.01, 0.2, 1.0, 30.0])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_rounding_within_a_length_never_exceeds_it(scale: float, size: int) -> None:
    """Whatever the vector: noise that is added later is for no longer ones."""
    for seed in range(40):
        random = np.random.default_rng(seed)
        steps = random.normal(size=size)
        longest = scale * math.sqrt(size)
        steps *= longest / np.linalg.norm(steps)  # exactly as long as is allowed
        found = rounded(steps, random, longest)
        assert np.linalg.norm(found) <= longest


def test_the_largest_level_is_never_exceeded() -> None:
    """In float64 a whole number and a lot just below one can add up to the next whole number."""

    class Largest(np.random.Generator):
        def random(self, size: int) -> np.ndarray:  # type: ignore[override]
            return np.full(size, 1 - 2.0**-53)

    levels = np.array([32767.0, 1.0, 0.0, -1.0, -32767.0])
    assert (rounded(levels, Largest(np.random.PCG64(0))) == levels).all()


def test_rounding_within_a_length_keeps_the_direction() -> None:
    random, steps = np.random.default_rng(0), np.random.default_rng(1).normal(size=5000) * 4
    longest = float(np.linalg.norm(steps))
    found = np.mean([rounded(steps, random, longest) for _ in range(50)], 0)
    share = found @ steps / longest**2
    assert 0.95 < share <= 1
    assert np.linalg.norm(found - share * steps) / longest < 0.05


@pytest.mark.parametrize("room", [None, 3, 10])
def test_a_sum_of_quantised_vectors_is_the_sum_up_to_the_steps(room: int | None) -> None:
    step, sites = Quantise(bits=8), 3
    vectors = [vector(777) for _ in range(sites)]
    top = max(np.abs(rotate(x, 4)).max() for x in vectors)
    size = 777 if room is None else step.spec(Spec((777,)), room).shape[0]
    total = np.zeros(size, np.int64)
    for site, x in enumerate(vectors):
        way = Way(4, room, top, None, np.random.default_rng(site))
        sent = step.at_site(x, way)
        assert way.beyond == 0
        spec = step.spec(Spec((777,)), room)
        if room is None:
            assert spec.fits(sent)
            sent = from_words(sent, step.radix(None), 777)
        else:
            assert sent.dtype == np.int64
            assert spec.bound is not None
            assert sent.shape == spec.shape
            assert np.abs(sent).max() <= spec.bound
        total += sent
    found = step.at_coordinator(total, 777, Way(4, room, top))
    each = top / step.levels(room)
    error = np.linalg.norm(found - sum(vectors))
    assert error < each * math.sqrt(777 * sites) / 2
    assert error > 0


def test_what_is_beyond_the_range_is_cut_off_and_counted() -> None:
    step, x = Quantise(bits=8), vector()
    way = Way(4, None, 1e-9, None, np.random.default_rng(0))
    step.at_site(x, way)
    assert way.beyond == 1000
    way = Way(4, None, float(np.median(np.abs(rotate(x, 4)))), None, np.random.default_rng(0))
    step.at_site(x, way)
    assert way.beyond == 500


@pytest.mark.parametrize(("bits", "most"), [(2, 1.0), (4, 0.2), (8, 0.02), (16, 1e-4)])
def test_a_model_on_its_way_down(bits: int, most: float) -> None:
    x = vector(1001)
    words, step = coarse(x, bits, 3)
    assert words.size == coarse_words(1001, bits)
    error = np.linalg.norm(refined(words, 1001, bits, step, 3) - x) / np.linalg.norm(x)
    assert error < most
    nothing, step = coarse(np.zeros(5), bits, 3)
    assert (refined(nothing, 5, bits, step, 3) == 0).all()


def test_sites_choose_the_same_places_and_what_is_left_comes_later() -> None:
    step = Sparsify(share=0.25)
    x, memory, came = vector(), None, np.zeros(1000)
    for round in range(40):
        way = Way(round, memory=memory)
        sent = step.at_site(x, way)
        assert sent.shape == step.spec(Spec((1000,)), None).shape == (250,)
        came += step.at_coordinator(sent, 1000, Way(round))
        memory = way.memory
    assert memory is not None
    assert came + memory == pytest.approx(40 * x)
    assert np.linalg.norm(came - 40 * x) < 0.25 * np.linalg.norm(40 * x)


def test_without_feedback_a_random_part_is_right_on_average_but_not_longer_than_a_clip() -> None:
    step, x = Sparsify(share=0.25, feedback=False), vector()
    found = [step.at_coordinator(step.at_site(x, Way(s)), 1000, Way(s)) for s in range(400)]
    assert np.linalg.norm(np.mean(found, 0) - x) < 0.15 * np.linalg.norm(x)
    clipped = step.at_coordinator(step.at_site(x, Way(1)), 1000, Way(1, limit=1.0))
    assert np.linalg.norm(clipped) < np.linalg.norm(x)


def test_the_largest_numbers_go_first_and_the_others_are_kept() -> None:
    step, way = TopK(share=0.002), Way(0)
    x = np.zeros(1000)
    x[[3, 500, 7]] = [5.0, -9.0, 1.0]
    spec = step.spec(Spec((1000,)), None)
    sent = step.at_site(x, way)
    assert spec.fits(sent)
    assert spec.code is not None
    from cupola.federation.compact import opened

    assert opened(spec.code, sent, spec.shape).nonzero()[0].tolist() == [3, 500]
    again = Way(0, memory=way.memory)
    later = opened(spec.code, step.at_site(np.zeros(1000), again), spec.shape)
    assert later[7] == 1.0
    assert again.memory is not None
    assert not again.memory.any()


def test_a_transform_is_made_from_its_options() -> None:
    assert transform({"kind": "quantise", "bits": 4}) == Quantise(bits=4)
    for wrong in ({"kind": "quantize"}, {"bits": 4}, 8, {"kind": "json:dumps"}, {"kind": "no:T"}):
        with pytest.raises(ValueError, match="transforms"):
            transform(wrong)
    with pytest.raises(ValueError, match="bits"):
        transform({"kind": "quantise", "bits": 99})
