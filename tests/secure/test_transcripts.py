"""Whole studies send, remember and book the same bytes as when they were recorded."""

import json

import pytest
import transcripts

RECORDED = json.loads(transcripts.FILE.read_text("utf-8"))


@pytest.mark.parametrize("name", sorted(transcripts.STUDIES))
def test_every_message_memory_and_entry_is_that_of_the_record(name, tmp_path):
    assert transcripts.transcript(name, tmp_path) == RECORDED[name]
