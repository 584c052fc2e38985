"""Out-of-core inputs: rows that stay in their files and are read by index, batch by batch.

A `Dataset` whose inputs do not fit in memory has `Rows` where others have a tensor. Its targets are
in memory all the same, so that whatever cuts a data set into sites looks at no input. A reader
knows one kind of file; loaders of image folders, memory-mapped arrays and tables bring theirs.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cupola.errors import DataError

Index = Tensor | np.ndarray | Sequence[int] | slice | None
BLOCK_BYTES = 4 << 20  # read at a time where all inputs are looked at
THREADS = 8  # most that decode at once


class Reader(Protocol):
    """Inputs in files: how many of which shape and type, and those at some places.

    shape: (n, ...) of all, as `read` gives them. dtype: uint8 images, float32 features or int64
    tokens. A reader is pickled when sites are computed elsewhere: by its paths, not its contents.
    """

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...

    def read(self, places: np.ndarray) -> Tensor:
        """The inputs at these places, in this order; called by several threads."""


class Rows:
    """Some inputs of a reader, in some order: a view, of 8 bytes a row.

    `rows[index]` is another view and reads nothing; `rows.read(index)` gives a tensor.

    >>> class Squares:
    ...     shape, dtype = (1000, 1), torch.float32
    ...     def read(self, places):
    ...         return torch.from_numpy(places[:, None] ** 2).float()
    >>> rows = Rows(Squares())[10:]
    >>> rows.shape, rows.read([0, 2]).tolist()
    (torch.Size([990, 1]), [[100.0], [144.0]])
    """

    def __init__(self, reader: Reader, places: np.ndarray | None = None) -> None:
        self.reader = reader
        self.places = np.arange(reader.shape[0]) if places is None else places
        self._ahead: Ahead | None = None

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self.places), *self.reader.shape[1:]))

    @property
    def dtype(self) -> torch.dtype:
        return self.reader.dtype

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, index: Index) -> Rows:
        return Rows(self.reader, self._at(index))

    def read(self, index: Index = None) -> Tensor:
        """The inputs at `index` (integers, a mask or a slice; None: all), in that order."""
        places = self._at(index)
        if self._ahead is not None and (made := self._ahead.take(places)) is not None:
            return made.result()
        return self.reader.read(places)

    def soon(self, batches: Iterable[Index]) -> None:
        """These batches will be read, one after the other: each is read while the one before it is
        used. Whatever is read instead is read all the same."""
        self._ahead = Ahead(self.reader, [self._at(index) for index in batches])

    def blocks(self) -> Iterator[Tensor]:
        """All inputs, in order, so many at a time that memory stays small."""
        each = self.dtype.itemsize * int(np.prod(self.shape[1:], dtype=np.int64))
        size = max(1, BLOCK_BYTES // max(1, each))
        for start in range(0, len(self), size):
            yield self.read(slice(start, start + size))

    def _at(self, index: Index) -> np.ndarray:
        if index is None:
            return self.places
        if isinstance(index, Tensor):
            index = index.numpy()
        return self.places[index if isinstance(index, slice) else np.asarray(index)]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ahead": None}


class Ahead:
    """The next of a list of batches, being read by another thread."""

    def __init__(self, reader: Reader, batches: list[np.ndarray]) -> None:
        self._reader, self._batches = reader, deque(batches)
        self._places = np.empty(0, np.int64)
        self._made: Future[Tensor] | None = None
        self._lock = Lock()
        self._begin()

    def take(self, places: np.ndarray) -> Future[Tensor] | None:
        """What is being read, if it is this; the batch after it is begun."""
        with self._lock:
            if self._made is None or not np.array_equal(places, self._places):
                return None
            made = self._made
            self._begin()
            return made

    def _begin(self) -> None:
        self._made = None
        if self._batches:
            self._places = self._batches.popleft()
            self._made = threads("ahead").submit(self._reader.read, self._places)


def threads(purpose: str) -> ThreadPoolExecutor:
    """Threads for reading, shared by all readers of a process. purpose: those that read ahead wait
    for those that decode, and must not take their places."""
    return _threads(purpose, os.getpid())


@cache
def _threads(purpose: str, process: int) -> ThreadPoolExecutor:
    del process  # a child by fork has none of its parent's threads
    return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1), f"cupola {purpose}")


def joined_rows(parts: Sequence[Tensor | Rows]) -> Rows:
    """The inputs of all parts, one after the other; still in their files."""
    return Rows(Joined(parts))


class Joined:
    """Readers, and tensors, one after the other."""

    def __init__(self, parts: Sequence[Tensor | Rows]) -> None:
        self._parts = list(parts)
        self._first = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self._first[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype
        for part in parts:
            if part.shape[1:] != parts[0].shape[1:] or part.dtype != self.dtype:
                raise DataError(
                    f"inputs of shape {list(parts[0].shape[1:])} and {self.dtype} do not go "
                    f"together with {list(part.shape[1:])} and {part.dtype}"
                )

    def read(self, places: np.ndarray) -> Tensor:
        made = torch.empty((len(places), *self.shape[1:]), dtype=self.dtype)
        owner = np.searchsorted(self._first, places, side="right") - 1
        for number in np.unique(owner).tolist():
            own = np.flatnonzero(owner == number)
            part, inner = self._parts[number], places[own] - self._first[number]
            found = part.read(inner) if isinstance(part, Rows) else part[torch.from_numpy(inner)]
            made[torch.from_numpy(own)] = found
        return made


def blocks(x: Tensor | Rows) -> Iterator[Tensor]:
    """All inputs, in order: a tensor as it is, rows in files a block at a time."""
    if isinstance(x, Rows):
        yield from x.blocks()
    else:
        yield x


def first_unusable(x: Tensor | Rows) -> int | None:
    """The first row that holds NaN or infinity. Of rows in files it reads all, once: images
    for nothing but finding out whether they can be read."""
    start = 0
    for block in blocks(x):
        if block.is_floating_point() and not bool(torch.isfinite(block).all()):
            wrong = (~torch.isfinite(block.reshape(len(block), -1))).any(1)
            return start + int(wrong.nonzero()[0])
        start += len(block)
    return None
