"""The other side notices a folder that was put back, and forgives an answer that was lost."""

import os
import shutil

import pytest
from chains import chain_of

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


def test_a_second_process_that_is_refused_does_not_break_the_ledger_of_the_first(tmp_path):
    first, receipts = Journal(tmp_path / "l.jsonl"), Receipts()
    first.hold({})
    assert receipts.refusal("a", first.write(LINE)) is None
    Journal(tmp_path / "l.jsonl").write({"refused": "another process answers"})
    assert receipts.refusal("a", first.write(LINE)) is None
    assert chain_of(tmp_path / "l.jsonl").count == 4


@pytest.mark.skipif(os.name != "posix", reason="limits on the size of files")
def test_a_disk_that_fills_up_within_a_line_leaves_the_lines_before_it(tmp_path):
    import resource
    import signal

    path = tmp_path / "l.jsonl"
    journal, hard = Journal(path), resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    journal.hold({})
    before, handler = path.read_bytes(), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for room in range(1, 150, 6):  # the rest of a line may fit where its beginning did not
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, hard))
            with pytest.raises(OSError, match="too large"):
                journal.write({"reveals": "x" * 150})
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
            assert path.read_bytes() == before
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        signal.signal(signal.SIGXFSZ, handler)
    journal.write(LINE)
    assert chain_of(path).count == 2


def test_a_refused_folder_does_not_become_the_one_that_was_seen(tmp_path):
    class Steps:
        newest = 7

        def require(self, seen):
            if self.newest < seen:
                raise DataError("an old copy")

    steps, journal = Steps(), Journal(tmp_path / "l.jsonl")
    kept = {"answers": (steps, lambda: steps.newest)}
    journal.hold(kept)
    journal.write(LINE)
    steps.newest = 3  # put back, while the process runs
    for _ in range(2):
        with pytest.raises(DataError, match="an old copy"):
            journal.hold(kept)
        journal.write({"refused": "not usable"})


def test_a_ledger_that_is_put_back_under_a_running_process_is_not_gone_on_with(tmp_path):
    path = tmp_path / "l.jsonl"
    journal = Journal(path)
    journal.write(LINE)
    old = path.read_bytes()
    journal.write(LINE)
    path.write_bytes(old)
    for _ in range(2):
        with pytest.raises(DataError, match="an old copy, or cut off"):
            journal.write(LINE)


def test_who_only_looks_leaves_a_line_that_is_being_written(tmp_path):
    path = tmp_path / "l.jsonl"
    Journal(path).write(LINE)
    whole = path.read_bytes() + b'{"step": 2, "re'
    path.write_bytes(whole)
    journal = Journal(path)
    assert journal.seen == {}
    assert path.read_bytes() == whole
    journal.write(LINE)  # nobody writes any more: it belongs to a crash
    assert chain_of(path).count == 2
