"""Word vectors in the text layout of GloVe: a word and its numbers on each line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cupola.errors import PlanError


def word_vectors(path: str | Path, words: Sequence[str]) -> Tensor:
    """float32 (len(words), width): the file's vectors. Words it lacks are drawn from the global
    generator, normal with the mean square of those found; the first word, which pads, is zero."""
    path = Path(path).expanduser()
    try:
        stamp = path.stat().st_mtime_ns
    except OSError as error:
        raise PlanError(f"model.vectors: {error}") from None
    index, found = _read(path, stamp, tuple(words))
    table = torch.randn(len(words), found.shape[1]) * found.square().mean().sqrt()
    table[index] = found
    table[0] = 0
    return table


@lru_cache(maxsize=1)  # a model is built several times, the file may be large
def _read(path: Path, stamp: int, words: tuple[str, ...]) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """Places in `words` that the file knows (k,), and their vectors (k, width)."""
    place = {word: i for i, word in enumerate(words) if i}
    width = 0
    found: dict[int, np.ndarray] = {}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, 1):
                fields = line.rstrip().split(" ") if not width else []
                if len(fields) == 2 and all(f.isdigit() for f in fields):
                    continue  # word2vec's and fastText's first line: how many, how wide
                width = width or len(fields) - 1
                if line.partition(" ")[0] in place:
                    word, *numbers = line.rstrip().rsplit(" ", width)
                    if word in place:
                        found.setdefault(place[word], _numbers(numbers, width, path, number))
    except OSError as error:
        raise PlanError(f"model.vectors: {error}") from None
    if not found:
        some = ", ".join(repr(w) for w in words[2:5])
        raise PlanError(
            f"model.vectors = '{path}': none of the data's {len(words)} words ({some}, ...) is in "
            "it; each line must be a word and its numbers, as in GloVe's files"
        )
    return torch.tensor(list(found)), torch.from_numpy(np.stack(list(found.values())))


def _numbers(texts: list[str], width: int, path: Path, line: int) -> np.ndarray:
    try:
        vector = np.array(texts, np.float32)
    except ValueError:
        vector = np.empty(0, np.float32)
    if len(vector) != width or not width or not np.isfinite(vector).all():
        raise PlanError(
            f"model.vectors = '{path}': line {line} is not a word and {width} numbers, "
            "as the lines before it"
        )
    return vector
