"""Federated sets in the files that TensorFlow Federated published: EMNIST and Stack Overflow.

An HDF5 file holds examples/<owner>/<field>. Owners are read when their sites are asked for: a file
of hundreds of thousands costs what the sites of a round cost, after one look at all sizes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import NonNegativeInt, PositiveInt

from cupola.base.files import replacing
from cupola.base.randomness import generator
from cupola.data.dataset import Dataset, SiteData, joined
from cupola.data.download import Files, cache_folder
from cupola.data.lazy import Owners
from cupola.data.loaders._common import classes
from cupola.data.loaders.leaf import LETTERS
from cupola.data.loading import dataset
from cupola.data.words import Vocabulary, most_frequent, rows, windows
from cupola.errors import DataError

MANY_OWNERS = 10_000  # from here on, their sizes are remembered in the cache
_SHUFFLE = 0  # the owners behind public rows are the same for everybody


@dataset("emnist")
def emnist(
    files: Files, only_digits: bool = False, public_test: NonNegativeInt | None = None
) -> Owners:
    """Handwritten characters by writer (3,400), 1 x 28 x 28, 62 classes, as TensorFlow Federated
    published them. Reads fed_emnist_train.h5 and fed_emnist_test.h5 (examples/<writer>/pixels and
    label; ink is dark). Needs `pip install cupola[hdf5]`.

    only_digits: fed_emnist_digitsonly_*.h5, 10 classes. public_test: rows of all writers' test
    parts that the coordinator holds, whole writers in a fixed random order; default: all.
    """
    name = "fed_emnist_digitsonly" if only_digits else "fed_emnist"
    train, test = (_File(files.get(f"{name}_{part}.h5"), "label") for part in ("train", "test"))
    letters = LETTERS[:10] if only_digits else LETTERS
    place = {writer: i for i, writer in enumerate(test.owners)}

    def part(file: _File, i: int | None) -> Dataset:
        if i is None:
            return Dataset(torch.empty(0, 1, 28, 28, dtype=torch.uint8), torch.empty(0).long())
        pixels, label = file.read(i, ("pixels", "label"))
        if pixels.shape[1:] != (28, 28) or len(pixels) != len(label):
            raise DataError(f"{file.path}: {file.owners[i]}: pixels of shape {pixels.shape}")
        if len(label) and not 0 <= label.min() <= label.max() < len(letters):
            raise DataError(
                f"{file.path}: {file.owners[i]}: labels up to {label.max()}, but there are "
                f"{len(letters)} classes"
            )
        grey = np.rint(np.asarray(pixels, np.float32) * 255).clip(0, 255).astype(np.uint8)
        return Dataset(torch.from_numpy(grey[:, None]), classes(label))

    def read(i: int) -> SiteData:
        writer = train.owners[i]
        return SiteData(part(train, i), test=part(test, place.get(writer)))

    public = {}
    if public_test != 0:
        public["test"] = _first_rows(test.sizes, public_test, partial(part, test))
    return Owners(
        "emnist",
        "classification",
        train.owners,
        train.sizes,
        read,
        (1, 28, 28),
        len(letters),
        (*letters,),
        public,
    )


@dataset("stackoverflow")
def stackoverflow(
    files: Files,
    words: PositiveInt = 10_000,
    length: PositiveInt = 20,
    min_sentences: NonNegativeInt = 100,
    max_sentences: PositiveInt = 256,
    public_test: NonNegativeInt = 10_000,
    public_validation: NonNegativeInt = 10_000,
) -> Owners:
    """Next word in the sentences of a user (342,477), as TensorFlow Federated published them: x and
    y are int64 (n, length), y is x one step on. Reads stackoverflow_train.h5 with _test.h5 and
    _held_out.h5 (examples/<user>/tokens), and stackoverflow.word_count. Needs
    `pip install cupola[hdf5]`.

    words: most frequent ones; any other is one token (see `cupola.data.words`). length: longer
    sentences are cut off. min_sentences: users with fewer are left out. max_sentences: a user's
    first so many are used. public_test, public_validation: sentences that the coordinator holds, of
    users in a fixed random order; 0: none.
    """
    file = _File(files.get("stackoverflow_train.h5"), "tokens")
    known = Vocabulary(most_frequent(_word_counts(files.get("stackoverflow.word_count")), words))
    kept = np.flatnonzero(file.sizes >= min_sentences)
    if not len(kept):
        raise DataError(f"stackoverflow: min_sentences = {min_sentences} leaves no user")

    def sentences(of: _File, i: int) -> Dataset:
        (tokens,) = of.read(i, ("tokens",), max_sentences)
        texts = [_text(sentence).split() for sentence in tokens]
        return rows([windows(known.ids(text), length, all=False)[0] for text in texts], length)

    public = {}
    for part, suffix, many in (
        ("test", "test", public_test),
        ("validation", "held_out", public_validation),
    ):
        if many:
            other = _File(files.get(f"stackoverflow_{suffix}.h5"), "tokens")
            sizes = np.minimum(other.sizes, max_sentences)
            public[part] = _first_rows(sizes, many, partial(sentences, other))
    facts = known.facts
    return Owners(
        "stackoverflow",
        "language",
        [file.owners[i] for i in kept],
        np.minimum(file.sizes[kept], max_sentences),
        lambda i: SiteData(sentences(file, int(kept[i]))),
        (length,),
        facts.pop("classes"),
        public=public,
        facts=facts,
    )


class _File:
    """Owners of a file with how many rows of a field they have; opened only while it is read."""

    def __init__(self, path: Path, field: str) -> None:
        self.path = path
        self.owners, self.sizes = self._remembered(field)

    @contextlib.contextmanager
    def _open(self) -> Iterator[Any]:
        try:
            import h5py
        except ImportError:
            raise DataError(
                f"{self.path.name}: HDF5 files need h5py: pip install 'cupola[hdf5]'"
            ) from None
        try:
            with h5py.File(self.path, "r", locking=False) as stored:
                yield stored["examples"]
        except (OSError, KeyError) as error:
            raise DataError(
                f"{self.path}: not a file of examples/<owner>/... as TensorFlow Federated "
                f"published it ({error})"
            ) from None

    def read(self, i: int, fields: tuple[str, ...], most: int | None = None) -> list[np.ndarray]:
        """The first rows of some fields of owner i."""
        with self._open() as examples:
            owner = examples[self.owners[i]]
            return [owner[field][:most] for field in fields]

    def _look(self, field: str) -> tuple[list[str], np.ndarray]:
        with self._open() as examples:
            sizes = {owner: group[field].shape[0] for owner, group in examples.items()}
        if not sizes:
            raise DataError(f"{self.path}: nobody in examples/")
        return list(sizes), np.array([*sizes.values()], np.int64)

    def _remembered(self, field: str) -> tuple[list[str], np.ndarray]:
        """As `_look` sees them; those of a large file, which takes minutes, from the cache."""
        state = self.path.stat()
        name = f"{self.path.name}.{state.st_size}.{state.st_mtime_ns}.{field}.npz"
        kept = cache_folder() / "owners" / name
        with contextlib.suppress(OSError, ValueError, KeyError), np.load(kept) as stored:
            return stored["owners"].tolist(), stored["sizes"]
        owners, sizes = self._look(field)
        if len(owners) >= MANY_OWNERS:
            with contextlib.suppress(OSError):  # a cache that cannot be written is none
                kept.parent.mkdir(parents=True, exist_ok=True)
                with replacing(kept) as file:
                    np.savez(file, owners=np.array(owners), sizes=sizes)
        return owners, sizes


def _first_rows(sizes: np.ndarray, many: int | None, read: Callable[[int], Dataset]) -> Dataset:
    """Rows of owners in a fixed random order, until there are `many` (None: of all, in order)."""
    order = np.arange(len(sizes))
    if many is not None:
        order = generator(_SHUFFLE, "public owners").permutation(len(sizes))
        order = order[: int(np.searchsorted(np.cumsum(sizes[order]), many)) + 1]
    return joined([read(int(i)) for i in order]).subset(slice(0, many))


def _word_counts(path: Path) -> dict[str, int]:
    """Lines of a word and its count, or the same as a JSON object."""
    try:
        text = path.read_text("utf-8")
        if text.lstrip().startswith("{"):
            return {str(word): int(n) for word, n in json.loads(text).items()}
        return {word: int(n) for word, n in (line.split() for line in text.splitlines() if line)}
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: not lines of a word and its count ({error})") from None


def _text(stored: Any) -> str:
    return stored.decode("utf-8", "replace") if isinstance(stored, bytes) else str(stored)
