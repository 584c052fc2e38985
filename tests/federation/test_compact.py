"""Compact arrays: sums of words are words of sums, and what arrives is what was sent."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

from cupola.errors import FederationError
from cupola.federation import Contribution, Question, Spec
from cupola.federation.compact import (
    DIGITS,
    SPARSE,
    digits_per_word,
    from_sparse,
    from_words,
    opened,
    sent_as,
    to_sparse,
    to_words,
    words_for,
)
from cupola.federation.message import (
    decode_question,
    encode_question,
    misfit,
    refusal,
)

RANDOM = np.random.default_rng(3)


@pytest.mark.parametrize(
    ("sites", "bits"),
    [(1, 2), (1, 8), (1, 16), (2, 4), (7, 4), (10, 5), (10, 8), (100, 8), (100, 16), (4000, 13)],
)
def test_words_of_all_sites_at_their_extremes_add_up_without_carrying(
    sites: int, bits: int
) -> None:
    most = (2**bits - 1) // (2 * sites)
    radix = 2 * sites * most + 1
    for draw in (most, -most, None):
        size = 3 * digits_per_word(radix) + 1
        each = [
            np.full(size, draw) if draw is not None else RANDOM.integers(-most, most + 1, size)
            for _ in range(sites)
        ]
        words = [to_words(digits, radix) for digits in each]
        assert all(w.dtype == np.int64 and w.size == words_for(size, radix) for w in words)
        exact = [sum(int(w[place]) for w in words) for place in range(words[0].size)]
        assert max(map(abs, exact)) < 2**63, "a masked sum modulo 2^64 holds it"
        total = np.array(exact, np.int64)
        assert (from_words(total, radix, size) == sum(each)).all()


@pytest.mark.parametrize("bits", range(2, 17))
def test_a_word_holds_as_many_digits_as_64_bits_have_room_for(bits: int) -> None:
    radix = 2**bits - 1
    many = digits_per_word(radix)
    assert many >= 64 // bits
    assert (radix**many - 1) // 2 < 2**63 <= (radix ** (many + 1) - 1) // 2


def test_taking_digits_off_never_leaves_64_bits() -> None:
    for radix in range(3, 2**16, 2):
        largest = (radix ** digits_per_word(radix) - 1) // 2
        assert largest + radix // 2 < 2**63, radix


@pytest.mark.parametrize("size", [1, 2, 3, 255, 256, 257, 70_000])
def test_sparse_arrays_come_back(size: int) -> None:
    many = max(1, size // 7)
    places = np.sort(RANDOM.choice(size, many, replace=False))
    values = RANDOM.normal(size=many).astype(np.float32)
    data = to_sparse(places, values, size)
    kind, shape = sent_as((SPARSE, many), (size,))
    assert (data.dtype, data.shape) == (kind, shape)
    whole = from_sparse(data, many, size)
    assert (whole[places] == values).all()
    assert np.count_nonzero(whole) == np.count_nonzero(values)


def test_a_place_twice_or_beyond_the_end_is_refused() -> None:
    good = to_sparse(np.array([2, 5]), np.ones(2), 6)
    assert from_sparse(good, 2, 6).tolist() == [0, 0, 1, 0, 0, 1]
    for places in ([5, 2], [5, 5], [2, 7]):
        with pytest.raises(ValueError, match="places"):
            from_sparse(to_sparse(np.array(places), np.ones(2), 6), 2, 6)


def _asked(code: tuple[str, int], kind: str, size: int) -> Question:
    return Question("t", expects={"x": Spec((size,), kind, code=code)})


def test_a_code_crosses_the_border_and_is_checked() -> None:
    question = _asked((DIGITS, 255), "int", 10)
    assert decode_question(encode_question(question)).expects == question.expects
    for code in ((DIGITS, 4), (DIGITS, 1), (SPARSE, 11), (SPARSE, 0), ("zip", 3), (DIGITS, "9")):
        with pytest.raises(FederationError, match="well formed"):
            decode_question(encode_question(_asked(code, "int", 10)))  # type: ignore[arg-type]


def test_answers_that_are_not_as_agreed_are_refused() -> None:
    question = _asked((SPARSE, 2), "float", 6)
    good = to_sparse(np.array([2, 5]), np.ones(2), 6)
    assert refusal(Contribution({"x": good}), question) is None
    assert misfit({"x": good[:-1]}, question) == "ill-shaped array 'x'"
    assert misfit({"x": np.ones(6, np.float32)}, question) == "ill-shaped array 'x'"
    bad = to_sparse(np.array([5, 2]), np.ones(2), 6)
    assert "compact" in (refusal(Contribution({"x": bad}), question) or "")
    nan = to_sparse(np.array([2, 5]), np.array([1, np.nan]), 6)
    assert "NaN" in (refusal(Contribution({"x": nan}), question) or "")


def test_any_bytes_are_opened_or_refused() -> None:
    for _ in range(300):
        size = int(RANDOM.integers(1, 40))
        many = int(RANDOM.integers(1, size + 1))
        kind, shape = sent_as((SPARSE, many), (size,))
        data = RANDOM.integers(0, 256, shape).astype(kind)
        with suppress(ValueError):
            assert opened((SPARSE, many), data, (size,)).shape == (size,)
        words = RANDOM.integers(-(2**63), 2**63 - 1, words_for(size, 15))
        found = opened((DIGITS, 15), words, (size,))
        assert np.abs(found).max() <= 7


def test_sums_of_a_worker_hold_what_answers_stand_for() -> None:
    """Ray's workers add up before anything is sent: sizes are of what sites sent."""
    from cupola.engines.ray_worker import add_up

    question = _asked((SPARSE, 2), "float", 6)
    sent = to_sparse(np.array([2, 5]), np.ones(2), 6)
    (partial,) = add_up(question, iter([(s, Contribution({"x": sent}, 2.0)) for s in (0, 1)]))
    assert partial.arrays["x"].tolist() == [0, 0, 4, 0, 0, 4]
    assert partial.sample["x"].nbytes == sent.nbytes
    assert misfit(partial.sample, question) is None
