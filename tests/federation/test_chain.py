"""Files that show damage: every changed byte, and every line that is missing or moved."""

import json

import pytest
from chains import chain_of

from cupola.base.chain import (
    Chain,
    checked,
    read_chain,
    read_checked,
    read_json,
    read_sealed,
    sealed_json,
    sealed_text,
)
from cupola.errors import DataError

RECORDS = [{"a": 1}, {"b": [2, "x"]}, {"c": {"d": None}}, {"e": 4.5}]


def written(path, records=RECORDS):
    chain = chain_of(path)
    with path.open("ab") as file:
        for record in records:
            line, _ = chain.line(json.dumps(record))
            file.write(line)
            chain.take(line[:-1])
    return chain.tail


def test_a_chain_gives_back_what_was_written(tmp_path):
    path = tmp_path / "lines.jsonl"
    assert written(path) == chain_of(path).tail
    assert read_chain(path) == RECORDS


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[1:],
        lambda lines: [*lines[:1], *lines[2:]],
        lambda lines: [lines[1], lines[0], *lines[2:]],
        lambda lines: [*lines, lines[-1]],
        lambda lines: [lines[0].replace(b"1", b"2"), *lines[1:]],
        lambda lines: [*lines, b'{"more":1}\n'],
    ],
)
def test_lines_that_were_removed_moved_doubled_edited_or_added_are_noticed(tmp_path, change):
    path = tmp_path / "lines.jsonl"
    written(path)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(DataError, match=r"lines\.jsonl is damaged \(line \d.*restore it"):
        read_chain(path)


def test_a_line_that_a_crash_cut_off_is_no_damage(tmp_path):
    path = tmp_path / "lines.jsonl"
    written(path)
    path.write_bytes(path.read_bytes()[:-3])
    assert read_chain(path) == RECORDS[:-1]


def test_lines_that_are_missing_at_the_end_show_where_the_head_is_known(tmp_path):
    path = tmp_path / "lines.jsonl"
    seen = written(path)
    whole = path.read_bytes()
    written(path, [{"f": 6}])
    chain_of(path).require(path, seen)
    path.write_bytes(whole[: whole[:-1].rfind(b"\n") + 1])
    with pytest.raises(DataError, match="it has 3 lines, and had 4"):
        chain_of(path).require(path, seen)
    path.unlink()
    written(path, RECORDS[::-1])
    with pytest.raises(DataError, match="not those it had"):
        chain_of(path).require(path, seen)


def test_lines_of_an_earlier_version_are_read_and_covered_from_then_on(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"old":1}\n{"old":2}\n')
    assert read_chain(path) == [{"old": 1}, {"old": 2}]
    assert chain_of(path).loose == 2
    written(path)
    assert read_chain(path) == [{"old": 1}, {"old": 2}, *RECORDS]
    path.write_bytes(path.read_bytes().replace(b'"old":1', b'"old":3'))
    with pytest.raises(DataError, match="line 3"):
        read_chain(path)


def test_every_changed_byte_of_a_chain_is_noticed(tmp_path):
    path = tmp_path / "lines.jsonl"
    written(path)
    whole = path.read_bytes()
    for place in range(len(whole) - 1):  # without its last end a line belongs to a crash
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(bytes(changed))
        with pytest.raises(DataError):
            read_chain(path)


@pytest.mark.parametrize("value", [{"a": 1, "b": [1, 2]}, [{"a": 1}, {"b": {"c": 2}}]])
@pytest.mark.parametrize("indent", [None, 2])
def test_sealed_json_is_json_and_shows_every_changed_byte(tmp_path, value, indent):
    path = tmp_path / "told.json"
    path.write_text(sealed_json(path.name, json.dumps(value, indent=indent)))
    assert read_json(path) == value
    json.loads(path.read_text())
    whole = path.read_bytes()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 4
        path.write_bytes(bytes(changed))
        with pytest.raises(DataError, match="damaged"):
            read_json(path)


def test_a_sealed_text_and_a_checked_file_know_their_names(tmp_path):
    (tmp_path / "plan.toml").write_text(sealed_text("plan.toml", "a = 1\n"))
    (tmp_path / "other.toml").write_text(sealed_text("plan.toml", "a = 1\n"))
    assert read_sealed(tmp_path / "plan.toml") == ("a = 1\n", True)
    with pytest.raises(DataError, match="checksum does not fit"):
        read_sealed(tmp_path / "other.toml")
    (tmp_path / "0.answer").write_bytes(b"".join(checked("1.answer", b"bytes")))
    with pytest.raises(DataError, match="checksum does not fit"):
        read_checked(tmp_path / "0.answer")
    (tmp_path / "old.toml").write_text("a = 1\n")
    assert read_sealed(tmp_path / "old.toml") == ("a = 1\n", False)


def test_an_empty_chain_has_no_head():
    assert Chain().tail == (0, "")
