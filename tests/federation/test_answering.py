"""A site's answers as bytes: stored, given again, never to another question; codes for the rest."""

import hosts  # noqa: F401
import numpy as np
import pytest

from cupola.errors import DataError
from cupola.federation import (
    Answering,
    Contribution,
    Declined,
    Failure,
    OpenSite,
    Question,
    SiteContext,
    Spec,
    StateStore,
    read_answer,
    task,
)
from cupola.federation.message import encode_question, largest_answer
from cupola.federation.stored import DiskStore, SingleWriterLock, StoredAnswers

X = {"x": Spec((3,))}
TOLD: list[int] = []


@task("test secret draw")
def secret_draw(site, question):  # noqa: ARG001
    """Drawn by the operating system: another answer every time it is computed."""
    TOLD.append(question.step)
    return Contribution({"x": np.random.default_rng().normal(size=3)})


class Charges:
    """Accounts that count, and refuse when told so."""

    def __init__(self):
        self.charged, self.refuse = [], False

    def charge(self, question, charges):
        if self.refuse:
            return dict.fromkeys(charges, "no budget")
        self.charged.append(question.step)
        return {}


def site(folder, accounts=None, **options):
    def make():
        store = StateStore() if folder is None else DiskStore(folder / "state")
        return OpenSite(SiteContext(0, np.arange(3.0), None, store, None), accounts)

    answers = None if folder is None else StoredAnswers(folder / "answers")
    return Answering(make, answers=answers, **options)


def ask(answering, task="test secret draw", **facts):
    facts = {"expects": X, **facts}
    return read_answer(answering.answer(encode_question(Question(task, **facts))))


def values(answer):
    assert isinstance(answer, Contribution), answer
    return answer.arrays["x"].tolist()


def test_what_another_process_answered_meanwhile_counts(tmp_path):
    one, two = site(tmp_path), site(tmp_path)  # both are there, and nobody was asked
    told = values(ask(one, step=3))
    one.close()
    assert ask(two, step=3, round=7) == Failure("another question was answered under this step")
    assert ask(two, step=2) == Failure("a later step was answered: this one is over")
    assert values(ask(two, step=3)) == told


def test_a_question_asked_again_gets_the_stored_bytes_uncharged(tmp_path):
    accounts = Charges()
    first = values(ask(site(tmp_path, accounts), step=3))
    again = site(tmp_path, accounts)  # another process
    assert values(ask(again, step=3)) == first
    assert values(ask(again, step=3, confirmed=2)) == first  # what is confirmed is no question
    assert accounts.charged == [3]
    assert values(ask(again, step=4)) != first


def test_another_question_under_a_step_is_refused(tmp_path):
    answering, accounts = site(tmp_path, books := Charges()), books
    ask(answering, step=3)
    for other in ({"round": 1}, {"options": {"a": 1}}, {"arrays": {"a": np.zeros(1)}},
                  {"task": "test draw"}, {"expects": {"x": Spec((3,), "int")}}):  # fmt: skip
        assert ask(answering, step=3, **other) == Failure(
            "another question was answered under this step"
        )
    assert accounts.charged == [3]


def test_an_earlier_step_is_over(tmp_path):
    answering = site(tmp_path)
    for step in (2, 5):
        ask(answering, step=step)
    assert ask(answering, step=4) == Failure("a later step was answered: this one is over")
    assert isinstance(ask(answering, step=2), Contribution)  # stored


def test_confirmed_answers_go_and_are_not_given_anew(tmp_path):
    answering = site(tmp_path)
    for step in range(4):
        ask(answering, step=step, confirmed=step - 1)
    assert [path.stem for path in (tmp_path / "answers").glob("*.answer")] == ["3"]
    count = len(TOLD)
    again = site(tmp_path)
    assert isinstance(ask(again, step=1), Failure)
    assert ask(again, step=3, confirmed=99)  # a lie about confirmation drops nothing that is needed
    assert isinstance(ask(again, step=3), Contribution)
    assert len(TOLD) == count


def test_what_is_refused_is_neither_charged_nor_stored(tmp_path):
    accounts = Charges()
    accounts.refuse = True
    answering = site(tmp_path, accounts)
    assert ask(answering, step=0) == Failure("no budget")
    accounts.refuse = False
    assert isinstance(ask(answering, step=0), Contribution)


def test_the_gate_comes_first_even_for_stored_answers(tmp_path):
    closed = []

    def gate(_):
        if closed:
            raise Declined("withdrawn")
        return False

    answering = site(tmp_path, gate=gate)
    ask(answering, step=0)
    closed.append(True)
    assert ask(answering, step=0) == Failure("withdrawn")


def test_an_answer_that_cannot_be_stored_does_not_leave(tmp_path, monkeypatch):
    answering = site(tmp_path)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        assert ask(answering, step=0) == Failure(
            "error at the site (its disk is full)", broken=True
        )
    assert not list((tmp_path / "answers").iterdir())
    first = values(ask(answering, step=0))
    assert values(ask(site(tmp_path), step=0)) == first


def test_paths_and_values_stay_in_the_sites_own_log():
    log = []

    def make():
        raise DataError("/home/clinic/patients.csv: row 12, value 4711")

    answering = Answering(make, own_log=log.append)
    told = ask(answering)
    assert told == Failure("data or files are not usable: see the site's own log", broken=True)
    assert log == ["/home/clinic/patients.csv: row 12, value 4711"]


@pytest.mark.parametrize("bytes_in", [b"", b"garbage", b"\0" * 24 + b"CUP1", b"\0" * 200])
def test_garbage_is_answered_with_a_code(tmp_path, bytes_in):
    told = read_answer(site(tmp_path).answer(bytes_in))
    assert told == Failure("message is not well formed", broken=True)


def test_deep_headers_break_nothing(tmp_path):
    header = b"[" * 100_000
    message = b"CUP1" + len(header).to_bytes(4, "little") + b"\0" * 8 + header
    told = read_answer(site(tmp_path).answer(b"\0" * 24 + message))
    assert told == Failure("message is not well formed", broken=True)
    assert isinstance(read_answer(b"A" + message), Failure)


def test_codes_from_a_site_are_short_and_printable():
    assert read_answer(b"F" + b"x" * 10_000) == Failure("x" * 200)
    assert read_answer(b"Bred\x1b[31m\n") == Failure("red?[31m?", broken=True)
    assert read_answer(b"") == read_answer(b"Zero") == Failure("message is not well formed", True)


def test_the_largest_answer_is_large_enough(tmp_path):
    question = Question("test secret draw", expects=X)
    assert len(site(tmp_path).answer(encode_question(question))) <= largest_answer(question)


def test_one_process_answers_for_a_site(tmp_path):
    first = SingleWriterLock(tmp_path)
    with pytest.raises(DataError, match="another process"):
        SingleWriterLock(tmp_path, wait=0)
    first.close()
    SingleWriterLock(tmp_path, wait=0).close()
