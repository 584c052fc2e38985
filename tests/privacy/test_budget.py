"""The book of what sites spend: charged once, kept over crashes, refusing beyond a limit."""

import json

import numpy as np
import pytest

from cupola.errors import DataError
from cupola.federation import Charge, Question
from cupola.privacy.accounting import epsilon
from cupola.privacy.budget import Book, Limit
from cupola.privacy.events import Gaussian, SampledGaussian

STEP = Charge((SampledGaussian(0.1, 1.5, 2),))


def asked(step, value=0.0):
    return Question("train", {"model/w": np.full(3, value)}, step=step, round=step)


def test_charges_add_up_by_site():
    book = Book()
    for step in range(5):
        assert book.charge(asked(step), {0: STEP, 1: STEP if step < 2 else Charge(())}) == {}
    assert book.history(0) == (SampledGaussian(0.1, 1.5, 10),)
    assert book.history(1) == (SampledGaussian(0.1, 1.5, 4),)
    assert book.history(2) == ()
    assert book.spent(0, 1e-5) == epsilon([SampledGaussian(0.1, 1.5, 10)], 1e-5)
    assert book.histories() == {book.history(0): [0], book.history(1): [1]}


def test_the_same_question_is_charged_once_and_another_under_its_step_refused():
    book = Book()
    book.charge(asked(1), {0: STEP})
    assert book.charge(asked(1), {0: STEP, 1: STEP}) == {}
    assert book.history(0) == book.history(1) == STEP.events
    refused = book.charge(asked(1, value=1.0), {0: STEP, 2: STEP})
    assert set(refused) == {0, 2}
    assert "another question" in refused[0]
    assert book.history(0) == STEP.events


def test_a_limit_is_never_exceeded_and_refused_questions_cost_nothing():
    limit = Limit(epsilon=2.0, delta=1e-5)
    book = Book(limit=limit)
    answered = 0
    for step in range(400):
        if book.charge(asked(step), {0: STEP}):
            break
        answered += 1
        assert book.spent(0, 1e-5) <= 2.0
    assert 0 < answered < 400
    at_limit = book.history(0)
    assert epsilon([*at_limit, *STEP.events], 1e-5) > 2.0, "it could have answered once more"
    refused = book.charge(asked(999), {0: STEP})
    assert "budget of epsilon 2" in refused[0]
    assert book.history(0) == at_limit
    # A cheaper answer may still fit, and other sites have their own account.
    assert book.charge(asked(1000), {0: Charge((Gaussian(1000.0),)), 1: STEP}) == {}


def test_under_a_limit_unprotected_and_trusting_answers_are_refused():
    book = Book(limit=Limit(10.0, 1e-5))
    trusting = Charge((Gaussian(5.0),), unit="site", trusts="coordinator")
    refused = book.charge(asked(1), {0: None, 1: trusting})
    assert "unprotected" in refused[0]
    assert "coordinator" in refused[1]
    assert book.histories() == {}
    trusted = Book(limit=Limit(10.0, 1e-5, trust_coordinator=True))
    assert trusted.charge(asked(1), {1: trusting}) == {}


def test_without_a_limit_unprotected_answers_are_counted():
    book = Book()
    assert book.charge(asked(1), {0: None, 1: None}) == {}
    assert book.unprotected == {"train": 2}


def test_a_file_survives_the_process(tmp_path):
    path, limit = tmp_path / "spent.jsonl", Limit(1.0, 1e-5)
    first = Book(path, study="s", run="a", limit=limit)
    step = 0
    while not first.charge(asked(step), {0: STEP, 3: STEP}):
        step += 1
    first.close()
    again = Book(path, study="s", run="a", limit=limit)
    assert again.histories() == first.histories()
    assert again.charge(asked(0), {0: STEP}) == {}, "answered before the crash: charged already"
    assert again.charge(asked(step), {0: STEP}) != {}
    again.close()
    other_run = Book(path, study="s", run="b", limit=limit)
    assert other_run.charge(asked(0), {0: STEP}) != {}, "a second run spends from the same budget"
    other_run.close()
    assert Book.read(path).histories() == first.histories()


def test_a_line_cut_off_by_a_crash_was_never_answered(tmp_path):
    path = tmp_path / "spent.jsonl"
    book = Book(path, study="s")
    book.charge(asked(0), {0: STEP})
    before = path.read_bytes()
    book.charge(asked(1), {0: STEP})
    book.close()
    whole = path.read_bytes()
    for cut in range(len(before) + 1, len(whole) - 1, 7):
        path.write_bytes(whole[:cut])
        again = Book(path, study="s")
        assert again.history(0) == STEP.events
        again.charge(asked(1), {0: STEP})
        again.close()
        assert Book.read(path).history(0) == (SampledGaussian(0.1, 1.5, 4),)


def test_a_file_of_another_study_or_kind_is_refused_untouched(tmp_path):
    path = tmp_path / "spent.jsonl"
    Book(path, study="heart").close()
    before = path.read_bytes()
    with pytest.raises(DataError, match="belongs to the study 'heart', not to 'lung'"):
        Book(path, study="lung")
    assert path.read_bytes() == before
    for text in ("not json\n", json.dumps({"cupola": "spent", "format": 99}) + "\n", "[]\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="not a file of spent privacy"):
            Book(path, study="heart")
        assert path.read_text() == text


def test_many_sites_with_equal_histories_cost_little():
    book = Book(limit=Limit(5.0, 1e-5))
    for step in range(20):
        assert book.charge(asked(step), dict.fromkeys(range(10_000), STEP)) == {}
    assert len(book.histories()) == 1


def test_a_book_has_one_writer(tmp_path):
    """Two would not see each other's charges, and overspend together."""
    path = tmp_path / "spent.jsonl"
    first = Book(path, study="s")
    with pytest.raises(DataError, match="in use by another run"):
        Book(path, study="s")
    first.charge(asked(0), {0: STEP})
    first.close()
    second = Book(path, study="s")
    assert second.history(0) == STEP.events
    second.close()


def test_a_first_line_cut_off_by_a_crash_begins_anew(tmp_path):
    path = tmp_path / "spent.jsonl"
    path.write_text('{"cupola":"spent","for')
    book = Book(path, study="s")
    book.charge(asked(0), {0: STEP})
    book.close()
    assert Book.read(path).history(0) == STEP.events


def test_charges_under_other_neighbours_are_refused_in_words():
    book = Book(limit=Limit(5.0, 1e-5, neighbours="add-remove"))
    replaced = Charge((Gaussian(3.0, neighbours="replace-one"),))
    assert "other neighbouring data sets" in book.charge(asked(0), {0: replaced})[0]
    assert book.histories() == {}
