"""Next words: a vocabulary with the tokens that are no words, and texts as rows of one length.

Ids as in TensorFlow Federated: 0 pads, then the words, most frequent first, then any other word,
the begin and the end of a text. For 10,000 words that makes 10,004 tokens.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cupola.data.dataset import Dataset
from cupola.errors import DataError

PADDING = 0
_WORD = re.compile(r"[\w']+|[.,!?;]")


@dataclass(frozen=True)
class Vocabulary:
    """Words in the order of their ids, 1, 2, ..."""

    words: tuple[str, ...]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words, 1)}

    @property
    def unknown(self) -> int:
        return len(self.words) + 1

    @property
    def begin(self) -> int:
        return len(self.words) + 2

    @property
    def end(self) -> int:
        return len(self.words) + 3

    def __len__(self) -> int:
        return len(self.words) + 4

    @property
    def names(self) -> tuple[str, ...]:
        """What each id stands for."""
        return ("<pad>", *self.words, "<unknown>", "<begin>", "<end>")

    @property
    def facts(self) -> dict[str, Any]:
        """What a data set of next words says of itself. Padding counts in no loss; unknown words
        and ends are learnt, but accuracy leaves them out."""
        return {
            "classes": len(self),
            "vocabulary": len(self),
            "words": self.names,
            "padding": PADDING,
            "uncounted": (self.unknown, self.end),
        }

    def ids(self, text: Sequence[str]) -> list[int]:
        """Ids of a text's words, between begin and end."""
        known, unknown = self._ids, self.unknown
        return [self.begin, *(known.get(word, unknown) for word in text), self.end]


def words_of(text: str) -> list[str]:
    """Words and marks of a text, in lower case."""
    return _WORD.findall(text.lower())


def vocabulary(
    name: str, path: str | Path | None, texts: Iterable[Sequence[str]], many: int
) -> tuple[str, ...]:
    """The words that a data set `name` knows: the first ones of a file whose lines start with a
    word (a file of word vectors will do), or without one the most frequent of these texts."""
    if path is None:
        return most_frequent(Counter(word for text in texts for word in text), many)
    known: dict[str, None] = {}
    try:
        with Path(path).expanduser().open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.strip():
                    known[line.split(maxsplit=1)[0]] = None
                if len(known) == many:
                    break
    except OSError as error:
        raise DataError(f"{name}: vocabulary: {error}") from None
    return tuple(known)


def most_frequent(counts: Mapping[str, int], many: int) -> tuple[str, ...]:
    """The most frequent words, equally frequent ones in order of the alphabet."""
    return tuple(sorted(counts, key=lambda word: (-counts[word], word))[:many])


def windows(ids: Sequence[int], length: int, *, all: bool) -> list[Sequence[int]]:
    """`length` + 1 tokens or fewer each, overlapping by one: inputs and what follows them.

    Only the first, which cuts a long text off, or `all` of them but one that has only the end left.
    """
    stop = max(len(ids) - 2, 1) if all else 1
    return [ids[start : start + length + 1] for start in range(0, stop, length)]


def rows(texts: Sequence[Sequence[int]], length: int) -> Dataset:
    """Inputs (n, length) and the tokens that follow each, filled up with padding."""
    table = np.full((len(texts), length + 1), PADDING, np.int64)
    for row, text in zip(table, texts):
        row[: len(text)] = text
    made = torch.from_numpy(table)
    return Dataset(made[:, :-1].contiguous(), made[:, 1:].contiguous())
