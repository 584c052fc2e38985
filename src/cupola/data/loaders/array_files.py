"""Arrays (.npy) that need not fit in memory: `npy`, the files of an unpacked npz."""

from __future__ import annotations

import itertools
import math
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cupola.data.dataset import Kind, Source
from cupola.data.loaders.csv_npz import as_inputs, from_arrays
from cupola.data.loading import dataset
from cupola.data.stored_rows import Rows, first_unusable
from cupola.errors import DataError

_OF_ROWS = ("x", "x_train", "x_test")


@dataset("npy")
def npy(
    folder: str | Path, kind: Kind | None = None, test: float = 0.2, check: bool = True
) -> Source:
    """A folder of .npy files with the names and meanings of npz's arrays: x.npy and y.npy, or
    x_train.npy, y_train.npy, x_test.npy, y_test.npy; optional site.npy, local_test.npy,
    class_names.npy. Inputs (x...) are read batch by batch; all else is loaded.

    check: look for NaN and infinity in all inputs when the set is loaded, at the speed of the disk
    (whole numbers need no look). Without it a sample that is not finite makes its update fail.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        raise DataError(f"npy: {root} is not a folder")
    stored: dict[str, Any] = {}
    for path in sorted(root.glob("*.npy")):
        stored[path.stem] = ArrayFile(path) if path.stem in _OF_ROWS else _loaded(path)
    return from_arrays(root, stored, kind, test, lambda file: _rows(file, check), "file")


def _rows(file: ArrayFile, check: bool) -> Rows:
    rows = Rows(file)
    wrong = first_unusable(rows) if check and rows.dtype.is_floating_point else None
    if wrong is not None:
        raise DataError(f"{file.path} holds NaN or infinity, first in row {wrong}")
    return rows


def _loaded(path: Path, mapped: bool = False) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a readable npy file of plain numbers ({error})") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: not a readable npy file of plain numbers")
    return array


class ArrayFile:
    """Reader of a .npy file; inputs are turned into what models take (uint8 images with channels
    first, float32, int64) as they are read.

    Rows are read at their place in the file, neighbours in one piece. A memory map would do the
    same, but a file that somebody shortens would kill the process instead of being refused, and
    pages that were touched would count as the process's memory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._open()
        like = as_inputs(self._raw(np.arange(min(1, self._rows))))
        self.dtype: torch.dtype = like.dtype
        self.shape: tuple[int, ...] = (self._rows, *like.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def _open(self) -> None:
        head = _loaded(self.path, mapped=True)
        assert isinstance(head, np.memmap)
        if head.ndim < 2:
            raise DataError(f"{self.path}: inputs have rows; an array of one axis has none")
        if not head.flags.c_contiguous:
            raise DataError(
                f"{self.path}: a row lies in pieces (Fortran order); save np.ascontiguousarray(x)"
            )
        self._rows, self._stored = len(head), head.dtype
        self._inner, self._offset = head.shape[1:], int(head.offset)
        self._each = head.itemsize * math.prod(self._inner)
        self._file = os.open(self.path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._file)

    def read(self, places: np.ndarray) -> Tensor:
        return as_inputs(self._raw(places))

    def _raw(self, places: np.ndarray) -> np.ndarray:
        made = np.empty((len(places), *self._inner), self._stored)
        bytes_of = memoryview(made.reshape(-1).view(np.uint8).data)
        breaks = np.flatnonzero(np.diff(places) != 1) + 1
        for start, stop in itertools.pairwise([0, *breaks.tolist(), len(places)]):
            part = bytes_of[start * self._each : stop * self._each]
            at = self._offset + int(places[start]) * self._each if len(part) else 0
            while len(part):
                got = os.preadv(self._file, [part], at)
                if not got:
                    raise DataError(f"{self.path} has become shorter than when it was opened")
                part, at = part[got:], at + got
        return made

    def __getstate__(self) -> dict[str, Any]:
        """By its path: what is computed elsewhere opens the file there."""
        return {"path": self.path, "dtype": self.dtype, "shape": self.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        if self._rows != self.shape[0]:
            raise DataError(f"{self.path} has {self._rows} rows here, {self.shape[0]} there")
