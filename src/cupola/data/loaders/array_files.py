"""Memory-mapped arrays (.npy) that need not fit in memory: `npy`, the files of an unpacked npz."""

from __future__ import annotations

import mmap
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cupola.data.dataset import Kind, Source
from cupola.data.loaders.csv_npz import as_inputs, from_arrays
from cupola.data.loading import dataset
from cupola.data.stored_rows import Rows, first_unusable
from cupola.errors import DataError

RELEASE = 64 << 20  # bytes of pages that a process keeps mapped before it lets go of them
FAULT = 64 << 10  # what a first touch maps at most, however small a row is

_OF_ROWS = ("x", "x_train", "x_test")


@dataset("npy")
def npy(
    folder: str | Path, kind: Kind | None = None, test: float = 0.2, check: bool = True
) -> Source:
    """A folder of .npy files with the names and meanings of npz's arrays: x.npy and y.npy, or
    x_train.npy, y_train.npy, x_test.npy, y_test.npy; optional site.npy, local_test.npy,
    class_names.npy. Inputs (x...) are memory-mapped and read batch by batch; all else is loaded.

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
    """Reader of a memory-mapped .npy file; inputs are turned into what models take (uint8 images
    with channels first, float32, int64) as they are read.

    Pages stay with the process that touched them until the system needs memory. So that a run is
    seen to take what it takes, they are let go after every 64 MB: they stay in the system's cache.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._open()
        like = as_inputs(np.array(self._array[:1]))
        self.dtype: torch.dtype = like.dtype
        self.shape: tuple[int, ...] = (len(self._array), *like.shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def _open(self) -> None:
        self._array = _loaded(self.path, mapped=True)
        if self._array.ndim < 2 and self._array.dtype != object:
            raise DataError(f"{self.path}: inputs have rows; an array of one axis has none")
        self._map = self._array.base
        self._each = self._array.itemsize * int(np.prod(self._array.shape[1:], dtype=np.int64))
        self._touched, self._lock = 0, Lock()

    def read(self, places: np.ndarray) -> Tensor:
        if np.all(places[1:] >= places[:-1]):
            made = np.asarray(self._array[places])
        else:
            order = np.argsort(places, kind="stable")  # forwards through the file
            made = np.empty((len(places), *self._array.shape[1:]), self._array.dtype)
            made[order] = self._array[places[order]]
        self._touch(len(places))
        return as_inputs(made)

    def _touch(self, rows: int) -> None:
        with self._lock:
            self._touched += rows * max(self._each, FAULT)
            if self._touched < RELEASE:
                return
            self._touched = 0
        if isinstance(self._map, mmap.mmap) and hasattr(self._map, "madvise"):
            self._map.madvise(mmap.MADV_DONTNEED)  # a reader in between finds them again

    def __getstate__(self) -> dict[str, Any]:
        """By its path: what is computed elsewhere opens the file there."""
        return {"path": self.path, "dtype": self.dtype, "shape": self.shape}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()
        if len(self._array) != self.shape[0]:
            raise DataError(f"{self.path} has {len(self._array)} rows here, {self.shape[0]} there")
