"""Shakespeare's roles as next words, the task of Stack Overflow on data that is small and free."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from cupola.data.dataset import Source
from cupola.data.download import Files
from cupola.data.loaders._common import need, read_npz
from cupola.data.loading import dataset
from cupola.data.words import Vocabulary, rows, windows, words_of
from cupola.data.words import vocabulary as known_words


@dataset("shakespeare_words")
def shakespeare_words(
    files: Files,
    words: PositiveInt = 10_000,
    length: PositiveInt = 20,
    vocabulary: str | Path | None = None,
    roles: Literal["all", "even", "odd"] = "all",
) -> Source:
    """Next word in the speeches of a role: x and y are int64 (n, length), y is x one step on.
    Reads shakespeare_roles.npz (text, role, local_test, role_names). Words are lower-case, marks
    are words of their own. A speech longer than `length` goes on in the next row.

    words, vocabulary: as for sent140. Other tokens: see `cupola.data.words`. roles: of all, those
    of even or of odd number: some to train a base on, and others who adapt it, with its words.
    """
    path = files.get("shakespeare_roles.npz")
    stored = read_npz(path)
    need(stored, ["text", "role", "local_test", "role_names"], path)
    speeches = [words_of(line) for line in bytes(stored["text"]).decode().split("\n")]
    held = stored["local_test"].astype(bool)
    learnt = (s for s, h in zip(speeches, held) if not h)
    table = Vocabulary(known_words("shakespeare_words", vocabulary, learnt, words))
    pieces = [windows(table.ids(speech), length, all=True) for speech in speeches]
    each = np.array([len(piece) for piece in pieces])
    of, held = np.repeat(stored["role"].astype(np.int64), each), np.repeat(held, each)
    # Roles without a training row have no site.
    trained = np.unique(of[~held])
    if roles != "all":
        trained = trained[int(roles == "odd") :: 2]
    kept = np.isin(of, trained)
    data = rows([window for piece in pieces for window in piece], length)
    return Source(
        "shakespeare_words",
        "language",
        data.subset(np.flatnonzero(kept)),
        groups=np.searchsorted(trained, of[kept]),
        group_names=tuple(str(stored["role_names"][role]) for role in trained),
        local_test=held[kept],
        **table.facts,
    )
