"""Many short texts as bytes with offsets: names and alleles at their own size.

A numpy string takes four bytes a letter and the room of the longest of its array, an object fifty
bytes. Here a text takes its letters in UTF-8 and four bytes that say where it ends, so that one
allele of thousands of letters costs these letters.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

_BLOCK = 1 << 16  # texts that are gathered at once: the work space is their letters' places


class Texts:
    """letters: UTF-8, one text after another. places: text i is letters[places[i] : places[i + 1]];
    the first of a slice need not begin at 0.

    >>> names = Texts.of(["rs1", "rs22", "rs1"])
    >>> (names == "rs1").tolist(), names[[2, 1]].tolist(), names[1]
    ([True, False, True], ['rs1', 'rs22'], 'rs22')
    """

    __slots__ = ("letters", "places")
    __hash__ = None  # type: ignore[assignment]  # == is elementwise
    __array_ufunc__ = None  # an array on the left of == leaves it to us

    def __init__(self, letters: np.ndarray, places: np.ndarray) -> None:
        self.letters, self.places = letters, places

    @staticmethod
    def of(values: Any) -> Texts:
        """Texts of a list or an array of strings, or of what are Texts already."""
        if isinstance(values, Texts):
            return values
        if isinstance(values, np.ndarray) and values.dtype.kind == "U":
            codes = np.ascontiguousarray(values).view(np.uint32)
            codes = codes.reshape(len(values), values.dtype.itemsize // 4)
            if codes.max(initial=0) < 128:
                told = codes != 0
                return Texts.one_by_one(codes[told].astype(np.uint8), told.sum(axis=1))
        coded = [str(text).encode() for text in values]
        lengths = np.fromiter(map(len, coded), np.int64, len(coded))
        return Texts.one_by_one(np.frombuffer(b"".join(coded), np.uint8), lengths)

    @staticmethod
    def one_by_one(letters: np.ndarray, lengths: np.ndarray) -> Texts:
        """Texts of these lengths in bytes, which follow one another."""
        places = np.zeros(len(lengths) + 1, np.int32 if len(letters) < 1 << 31 else np.int64)
        np.cumsum(lengths, out=places[1:])
        return Texts(letters, places)

    @staticmethod
    def joined(parts: Sequence[Texts]) -> Texts:
        """One after another."""
        lengths = [part.lengths for part in parts]
        letters = np.concatenate([np.zeros(0, np.uint8), *(part.own_letters for part in parts)])
        return Texts.one_by_one(letters, np.concatenate([np.zeros(0, np.int32), *lengths]))

    @property
    def lengths(self) -> np.ndarray:
        """Of each, in bytes."""
        return np.diff(self.places)

    @property
    def own_letters(self) -> np.ndarray:
        """The bytes of these texts, and of no others of which they are a slice."""
        return self.letters[self.places[0] : self.places[-1]]

    @property
    def ascii(self) -> bool:
        return bool(self.own_letters.max(initial=0) < 128)

    @property
    def nbytes(self) -> int:
        return self.own_letters.nbytes + self.places.nbytes

    def __len__(self) -> int:
        return len(self.places) - 1

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def __repr__(self) -> str:
        return f"Texts({self.tolist()!r})" if len(self) < 9 else f"<{len(self):,} texts>"

    def tolist(self) -> list[str]:
        lines = self.lines()
        if lines.count(b"\n") == len(self) - 1:
            return lines.decode().split("\n")
        return [lines[a : b - 1].decode() for a, b in itertools.pairwise(self._line_places())]

    def lines(self) -> bytes:
        """The same as '\\n'.join, in UTF-8."""
        ends = self._line_places()[1:-1] - 1
        lines = np.empty(len(self.own_letters) + max(0, len(self) - 1), np.uint8)
        is_text = np.ones(len(lines), bool)
        is_text[ends], lines[ends] = False, ord("\n")
        lines[is_text] = self.own_letters
        return lines.tobytes()

    def _line_places(self) -> np.ndarray:
        return self.places.astype(np.int64) - self.places[0] + np.arange(len(self.places))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy
        return np.array(self.tolist(), object if dtype is None else dtype)

    @overload
    def __getitem__(self, index: int | np.integer) -> str: ...

    @overload
    def __getitem__(self, index: slice | np.ndarray | list[int]) -> Texts: ...

    def __getitem__(self, index: Any) -> str | Texts:
        """A text by its number; texts by a slice (which copies no letters), numbers, or a mask."""
        if isinstance(index, int | np.integer):
            i = range(len(self))[int(index)]
            return self.letters[self.places[i] : self.places[i + 1]].tobytes().decode()
        if isinstance(index, slice):
            if (index.step or 1) == 1:
                start, stop, _ = index.indices(len(self))
                return Texts(self.letters, self.places[start : max(start, stop) + 1])
            index = np.arange(len(self))[index]
        index = np.asarray(index)
        return self._gathered(np.flatnonzero(index) if index.dtype == bool else index.astype(int))

    def _gathered(self, index: np.ndarray) -> Texts:
        index = np.where(index < 0, index + len(self), index)
        if len(index) and not 0 <= index.min() <= index.max() < len(self):
            raise IndexError("there are not so many texts")
        starts, lengths = self.places[index], self.places[index + 1] - self.places[index]
        letters = np.empty(int(lengths.sum(dtype=np.int64)), np.uint8)
        at = 0
        for i in range(0, len(index), _BLOCK):
            part = _spread(starts[i : i + _BLOCK], lengths[i : i + _BLOCK])
            letters[at : at + len(part)] = self.letters[part]
            at += len(part)
        return Texts.one_by_one(letters, lengths)

    def where(self, mask: np.ndarray, other: Texts) -> Texts:
        """These where the mask says so, elsewhere the other ones."""
        rows = np.arange(len(self)) + np.where(mask, 0, len(self))
        return Texts.joined([self, other])[rows]

    def __eq__(self, other: object) -> np.ndarray:  # type: ignore[override]
        """Which are equal to one text, or each to the one at its place."""
        if isinstance(other, str):
            return self._is(np.frombuffer(other.encode(), np.uint8))
        theirs = Texts.of(other)
        if len(theirs) != len(self):
            raise ValueError(f"{len(self)} texts cannot be compared with {len(theirs)}")
        begins = self.places[0] - theirs.places[0]
        places = theirs.places if begins == 0 else theirs.places + begins
        alike = np.array_equal(self.places, places)
        if alike and np.array_equal(self.own_letters, theirs.own_letters):
            return np.ones(len(self), bool)  # as mostly, in a tenth of the time
        if alike:
            same = np.ones(len(self), bool)
            same[self._differs(theirs)] = False
            return same
        same = self.lengths == theirs.lengths
        rows = np.flatnonzero(same)
        same[rows[self[rows]._differs(theirs[rows])]] = False
        return same

    def __ne__(self, other: object) -> np.ndarray:  # type: ignore[override]
        return ~(self == other)

    def _is(self, text: np.ndarray) -> np.ndarray:
        same = self.lengths == len(text)
        for i, letter in enumerate(text):
            rows = np.flatnonzero(same)
            same[rows] = self.letters[self.places[rows] + i] == letter
        return same

    def _differs(self, other: Texts) -> np.ndarray:
        """At which places texts of the same lengths differ."""
        unequal = self.own_letters != other.own_letters
        if len(unequal) == len(self) and (self.lengths == 1).all():
            return np.flatnonzero(unequal)
        told = np.flatnonzero(self.lengths)
        if not len(told) or not unequal.any():
            return told[:0]
        return told[np.logical_or.reduceat(unequal, (self.places - self.places[0])[told])]


def _spread(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The places of all letters of texts that begin and are as long as told."""
    if len(lengths) and (lengths == lengths[0]).all():
        return (starts[:, None] + np.arange(int(lengths[0]))).reshape(-1)
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(
        int(ends[-1]) if len(ends) else 0
    )
