"""Tweets as next words, with the words of Shakespeare's roles: what the base is trained on."""

from __future__ import annotations

import dataclasses

from cupola.data.dataset import Source
from cupola.data.download import Files
from cupola.data.loading import load
from cupola.data.words import Vocabulary, rows, windows, words_of


def tweets(files: Files, words: int = 2000, length: int = 20) -> Source:
    """Reads sent140_users.npz and shakespeare_roles.npz, of which it takes the vocabulary."""
    import numpy as np

    plays = load("shakespeare_words", words=words, length=length)
    assert isinstance(plays, Source)
    table = Vocabulary(plays.words[1:-3])
    texts = bytes(np.load(files.get("sent140_users.npz"))["text"]).decode().split("\n")
    each = [part for text in texts for part in windows(table.ids(words_of(text)), length, all=True)]
    data = rows(each, length)
    return dataclasses.replace(
        plays, name="tweets", train=data, groups=None, group_names=(), local_test=None
    )
