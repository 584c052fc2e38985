"""Compact texts are the lists of strings that they were made of."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from cupola.association.files import Variants, read_variants
from cupola.association.texts import Texts

_WORDS = st.lists(st.text("ab0é\n", max_size=4), max_size=12)


@examples(max_examples=80, deadline=None, derandomize=True)
@given(words=_WORDS, other=_WORDS, data=st.data())
def test_texts_are_as_lists(words, other, data):
    texts, more = Texts.of(words), Texts.of(np.array(other, object))
    assert texts.tolist() == list(texts) == [texts[i] for i in range(len(words))] == words
    assert texts.lines() == "\n".join(words).encode()
    assert Texts.joined([texts, more]).tolist() == words + other
    start, stop = (data.draw(st.integers(-13, 13)) for _ in "ab")
    part = texts[start:stop]
    assert part.tolist() == words[start:stop]
    assert texts[::2].tolist() == words[::2]
    index = data.draw(st.lists(st.integers(-len(words), len(words) - 1)) if words else st.just([]))
    assert texts[np.array(index, int)].tolist() == [words[i] for i in index]
    mask = np.array([i in index for i in range(len(words))], bool)
    chosen = [w for w, told in zip(words, mask) if told]
    assert texts[mask].tolist() == chosen
    for own, theirs in ((texts, words), (part, words[start:stop])):
        assert (own == "ab").tolist() == [w == "ab" for w in theirs]
        assert (own != "").tolist() == [w != "" for w in theirs]
        changed = [w if i % 2 else w[::-1] for i, w in enumerate(theirs)]
        assert (own == Texts.of(changed)).tolist() == [a == b for a, b in zip(theirs, changed)]
        assert (np.array(changed, object) == own).tolist() == (own == changed).tolist()
        picked = own.where(own == changed, Texts.of(["?"] * len(own)))
        assert picked.tolist() == [a if a == b else "?" for a, b in zip(theirs, changed)]
        assert pickle.loads(pickle.dumps(own)).tolist() == theirs


def test_gathering_more_than_a_block_of_texts():
    words = [f"rs{i}" for i in range(70_000)]
    texts, index = Texts.of(np.array(words)), np.arange(70_000)[::-1]
    assert texts[index].tolist() == words[::-1]
    assert (texts[index] == texts).sum() == 0
    assert (texts[index][index] == texts).all()
    with pytest.raises(IndexError):
        texts[np.array([70_000])]
    with pytest.raises(ValueError, match="cannot be compared"):
        texts == words[1:]  # noqa: B015


def test_a_variant_takes_forty_bytes_with_an_allele_of_thousands_of_letters(tmp_path):
    path, long = tmp_path / "a.bim", "ACGT" * 750
    rows = [f"1\trs{1_000_000 + i}\t0\t{i}\tA\tC\n" for i in range(30_000)]
    path.write_text("".join([*rows, f"2\trs\t0\t5\t{long}\tC\n"]))
    listed = read_variants(path)
    assert listed.a1[-1] == long
    assert listed.nbytes / len(listed) < 40
    again = Variants.joined([listed[slice(0, 9)], listed[np.array([30_000])]])
    assert again.a1.tolist() == ["A"] * 9 + [long]
    assert again.position.tolist() == [*range(9), 5]


def test_as_many_letters_as_texts_are_not_one_letter_each():
    texts, others = Texts.of(["", "ab", "c"]), Texts.of(["", "ba", "c"])
    assert (texts == others).tolist() == [True, False, True]
    assert (Texts.of(["", "", "ab"]) == Texts.of(["", "", "ba"])).tolist() == [True, True, False]
