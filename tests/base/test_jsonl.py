"""Files of JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from cupola.base.jsonl import DurableLog, Log, json_line, read_lines
from cupola.errors import DataError


def test_numbers_that_are_not_finite_become_null() -> None:
    assert json_line({"a": [math.nan, 1.5], "b": (math.inf,)}) == '{"a":[null,1.5],"b":[null]}'
    assert json.loads(json_line({"a": 1}, indent=2)) == {"a": 1}


def test_a_log_is_cut_back_to_where_a_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    log = Log(path)
    log.write({"round": 1})
    length, tail = log.length, log.tail
    log.write({"round": 2})
    log.close()
    assert [line["round"] for line in read_lines(path)] == [1, 2]
    again = Log(path, length, tail)
    again.write({"round": 3})
    again.close()
    assert [line["round"] for line in read_lines(path)] == [1, 3]
    with pytest.raises(DataError, match="shorter than its checkpoint says"):
        Log(path, 10_000)


def opened(path: Path) -> DurableLog:
    return DurableLog(path, busy="it is in use", way_out="ask")


def test_a_durable_log_goes_on_behind_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    log = opened(path)
    assert log.read() == []
    log.append({"a": 1})
    with pytest.raises(DataError, match="it is in use"):
        opened(path)
    log.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"a":2,"ch')
    log = opened(path)
    assert log.read() == [{"a": 1}]
    assert path.read_bytes() != whole  # nothing is changed by looking
    log.append({"a": 3})
    log.close()
    assert list(read_lines(path)) == [{"a": 1}, {"a": 3}]
    path.write_bytes(path.read_bytes().replace(b'"a":1', b'"a":9'))
    log = opened(path)
    with pytest.raises(DataError, match="damaged"):
        log.read()
    log.close()


def test_after_a_failed_write_only_opening_it_again_tells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError("disk full")

    path = tmp_path / "spent.jsonl"
    log = opened(path)
    log.read()
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(OSError, match="disk full"):
            log.append({"a": 1})
    with pytest.raises(OSError, match="closed"):
        log.append({"a": 2})
    again = opened(path)
    assert again.read() in ([], [{"a": 1}])
    again.close()
