"""Next words: the vocabulary and its other tokens, rows of one length, Shakespeare's roles."""

from __future__ import annotations

import numpy as np
import pytest

from cupola import data as datasets
from cupola.data.words import Vocabulary, rows, vocabulary, windows
from cupola.errors import DataError

KNOWN = Vocabulary(("the", "king", "."))  # ids 1, 2, 3; unknown 4, begin 5, end 6


def test_the_most_frequent_words_come_first_and_ties_in_order():
    texts = [["b", "a", "b"], ["c", "a", "b"], ["d"]]
    assert vocabulary("x", None, texts, 3) == ("b", "a", "c")
    assert vocabulary("x", None, texts, 10) == ("b", "a", "c", "d")


def test_tokens_that_are_no_words_surround_them():
    assert len(Vocabulary(tuple(str(i) for i in range(10_000)))) == 10_004
    assert KNOWN.names == ("<pad>", "the", "king", ".", "<unknown>", "<begin>", "<end>")
    assert KNOWN.ids(["the", "mad", "king", "."]) == [5, 1, 4, 2, 3, 6]
    facts = KNOWN.facts
    assert facts["classes"] == facts["vocabulary"] == 7
    assert (facts["padding"], facts["uncounted"]) == (0, (4, 6))


def test_long_texts_are_cut_off_or_go_on():
    ids = KNOWN.ids(["the", "mad", "king", "."])  # five steps
    assert windows(ids, 3, all=False) == [[5, 1, 4, 2]]
    assert windows(ids, 3, all=True) == [[5, 1, 4, 2], [2, 3, 6]]
    assert windows(ids, 4, all=True) == [[5, 1, 4, 2, 3]]  # only the end would be left
    assert windows(ids, 9, all=True) == windows(ids, 9, all=False) == [ids]
    assert windows(KNOWN.ids([]), 4, all=True) == [[5, 6]]


def test_rows_predict_the_next_token_and_are_filled_up():
    made = rows([[5, 1, 6], [5, 1, 4, 2]], 3)
    assert made.x.tolist() == [[5, 1, 6], [5, 1, 4]]
    assert made.y.tolist() == [[1, 6, 0], [1, 4, 2]]
    assert len(rows([], 3)) == 0


def plays(path):
    text = "The king .\nA mad king, mad .\nhe\nThe the."
    np.savez(
        path / "shakespeare_roles.npz",
        text=np.frombuffer(text.encode(), np.uint8),
        role=np.array([0, 2, 1, 2], np.int32),
        local_test=np.array([False, False, True, True]),
        role_names=np.array(["Lear", "Nobody", "Fool"]),
    )


def test_roles_are_owners_and_their_held_out_speeches_stay_with_them(tmp_path):
    plays(tmp_path)
    source = datasets.load("shakespeare_words", folder=tmp_path, words=3, length=4)
    # "." and "king" and "mad" twice each; "the" once, as the test speech is not counted
    assert source.words == ("<pad>", ".", "king", "mad", "<unknown>", "<begin>", "<end>")
    assert source.group_names == ("Lear", "Fool")  # who has nothing to train on is no site
    assert source.groups.tolist() == [0, 1, 1, 1]
    assert source.local_test.tolist() == [False, False, False, True]
    assert source.train.x.tolist() == [[5, 4, 2, 1], [5, 4, 3, 2], [4, 3, 1, 6], [5, 4, 4, 1]]
    assert source.train.y[[0, 2]].tolist() == [[4, 2, 1, 6], [3, 1, 6, 0]]
    data = datasets.partition(source, "natural", 1)
    assert [data.site_name(i) for i in range(2)] == ["Lear", "Fool"]
    assert (data.padding, data.uncounted) == (0, (4, 6))
    assert len(data.site(1).test) == 1


def test_a_vocabulary_can_be_given(tmp_path):
    plays(tmp_path)
    (tmp_path / "words.txt").write_text("king 0.1 0.2\nfool 0.3 0.4\nmad 1 2\n")
    source = datasets.load(
        "shakespeare_words", folder=tmp_path, words=2, vocabulary=tmp_path / "words.txt"
    )
    assert source.words[1:3] == ("king", "fool")
    with pytest.raises(DataError, match="shakespeare_words: vocabulary"):
        datasets.load("shakespeare_words", folder=tmp_path, vocabulary=tmp_path / "none.txt")


def test_the_real_roles(real):
    real("shakespeare_roles.npz")
    source = datasets.load("shakespeare_words", words=2000)
    assert source.classes == 2004
    assert source.input_shape == (20,)
    assert len(source.group_names) == 782
    assert 50_000 < len(source.train) < 70_000
    words = source.train.y[source.train.y > 0]
    unknown = float((words == 2001).float().mean())
    assert 0.08 < unknown < 0.13
    assert bool((source.train.x[:, 1:] == source.train.y[:, :-1])[source.train.y[:, :-1] > 0].all())
