"""The other side notices a folder that was put back, and forgives an answer that was lost."""

import shutil

import pytest

from cupola.errors import DataError
from cupola.federation.receipts import Journal, Receipts, split_receipt

LINE = {"step": 1}
OLD = "an old or an edited copy"


def test_a_receipt_travels_in_front_of_an_answer(tmp_path):
    receipt = Journal(tmp_path / "ledger.jsonl").write(LINE)
    assert split_receipt(receipt.packed() + b"Abody") == (receipt, b"Abody")
    assert split_receipt(b"Abody") == (None, b"Abody")


def test_answers_that_follow_are_taken_over_restarts_of_both_sides(tmp_path):
    for _ in range(3):
        journal, receipts = Journal(tmp_path / "l.jsonl"), Receipts(tmp_path / "receipts.json")
        for _ in range(2):
            assert receipts.refusal("a", journal.write(LINE)) is None


def test_a_lost_answer_is_forgiven(tmp_path):
    journal, receipts = Journal(tmp_path / "l.jsonl"), Receipts()
    assert receipts.refusal("a", journal.write(LINE)) is None
    journal.write(LINE)
    assert receipts.refusal("a", journal.write(LINE)) is None


def test_a_folder_that_was_put_back_stays_refused_until_the_newest_is_there(tmp_path):
    path, seen = tmp_path / "l.jsonl", tmp_path / "receipts.json"
    journal = Journal(path)
    assert Receipts(seen).refusal("a", journal.write(LINE)) is None
    shutil.copy(path, tmp_path / "old")
    for _ in range(3):
        assert Receipts(seen).refusal("a", journal.write(LINE)) is None
    shutil.copy(path, tmp_path / "newest")
    shutil.copy(tmp_path / "old", path)
    journal = Journal(path)
    for _ in range(6):  # it does not grow into being believed, nor does a restart forget
        assert OLD in Receipts(seen).refusal("a", journal.write(LINE))
    shutil.copy(tmp_path / "newest", path)
    assert Receipts(seen).refusal("a", Journal(path).write(LINE)) is None


def test_two_copies_of_a_folder_at_work_are_noticed(tmp_path):
    receipts, one = Receipts(), Journal(tmp_path / "l.jsonl")
    one.write(LINE)
    shutil.copy(tmp_path / "l.jsonl", tmp_path / "m.jsonl")
    assert receipts.refusal("a", one.write(LINE)) is None
    assert OLD in receipts.refusal("a", Journal(tmp_path / "m.jsonl").write({"step": 2}))


def test_who_sent_receipts_goes_on_sending_them(tmp_path):
    receipts = Receipts()
    assert receipts.refusal("a", None) is None  # as earlier versions did
    receipts.refusal("a", Journal(tmp_path / "l.jsonl").write(LINE))
    assert "no receipt any more" in receipts.refusal("a", None)


def test_equal_ledgers_of_two_parties_have_other_heads(tmp_path):
    heads = {Journal(tmp_path / name).write(LINE).head for name in ("a", "b")}
    assert len(heads) == 2  # nobody can guess what is in them


def test_a_ledger_that_is_gone_is_noticed_where_it_is(tmp_path):
    with pytest.raises(DataError, match=r"ledger\.jsonl is damaged .*it is missing"):
        Journal(tmp_path / "ledger.jsonl", lambda: True).hold({})
