"""Columnar tables (Parquet, Arrow IPC) that need not fit in memory, by row group. Needs pyarrow."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from cupola.base.suggest import suggest
from cupola.data.dataset import Dataset, Source
from cupola.data.loaders._common import numbered, public_split
from cupola.data.loaders.folders import fitted_image
from cupola.data.loading import dataset
from cupola.data.stored_rows import Rows, first_unusable, joined_rows
from cupola.errors import DataError

GROUP_BYTES = 256 << 20  # decoded row groups are kept up to this size, the last used at least
_SUFFIXES = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}


@dataset("parquet")
def parquet(
    path: str | Path,
    target: str,
    inputs: str | None = None,
    site: str | None = None,
    drop: Sequence[str] = (),
    kind: Literal["auto", "classification", "regression"] = "auto",
    test: float = 0.2,
    size: PositiveInt = 64,
    check: bool = True,
) -> Source:
    """A table in a Parquet or Arrow IPC file (.arrow, .feather), or in a folder of such files, read
    by row group when a batch needs it; only the columns `target` and `site` are kept in memory.

    inputs: one column that holds a list of numbers (features, or tokens if they are whole) or an
    image file (bytes, as Hugging Face stores them; scaled and cut to size x size); without it all
    columns but `target`, `site` and `drop`, which must be numbers. site: natural owner. kind: auto
    is regression if the target has a number that is not whole, else classification. test: public
    share. check: read all inputs once when the set is loaded, so that NaN or a damaged image is
    refused before a run.
    """
    root = Path(path).expanduser()
    files = [TableFile(file) for file in _files(root)]
    columns = files[0].names
    if twice := sorted({name for name in columns if columns.count(name) > 1}):
        raise DataError(f"{root}: two columns are called {twice[0]!r}")
    for name in [n for n in (target, inputs, site, *drop) if n is not None]:
        if name not in columns:
            raise DataError(f"{root}: no column {name!r}; {suggest(name, columns, 'it has')}")
    chosen = (
        [inputs] if inputs else [n for n in columns if n not in (target, site) and n not in drop]
    )
    if not chosen:
        raise DataError(f"{root}: no column is left to predict {target!r} from")
    for file in files:
        file.choose(chosen, alone=inputs is not None, size=size)
    rows = Rows(files[0]) if len(files) == 1 else joined_rows([Rows(file) for file in files])
    wrong = first_unusable(rows) if check else None
    if wrong is not None:
        raise DataError(f"{root}: NaN, infinity or an empty cell in the inputs of row {wrong}")
    kind, y, names = _targets(root, np.concatenate([f.column(target) for f in files]), kind)
    labels = y.numpy() if kind == "classification" else None
    train, held, kept = public_split(Dataset(rows, y), test, labels)
    groups, group_names = None, ()  # type: tuple[np.ndarray | None, tuple[str, ...]]
    if site is not None:
        owners = np.concatenate([file.column(site) for file in files])
        groups, group_names = numbered(owners[kept].astype(str))
    vocabulary = None
    if rows.dtype == torch.int64:
        vocabulary = 1 + max((int(block.max()) for block in rows.blocks()), default=-1)
    return Source(
        root.stem, kind, train, held, None if kind == "regression" else len(names), names,
        groups=groups, group_names=group_names, vocabulary=vocabulary,
    )  # fmt: skip


def _files(root: Path) -> list[Path]:
    found = sorted(p for p in root.iterdir() if p.suffix in _SUFFIXES) if root.is_dir() else [root]
    if not found or found[0].suffix not in _SUFFIXES:
        raise DataError(f"parquet: {root} is no {', '.join(_SUFFIXES)} file, nor a folder of them")
    return found


def _targets(
    root: Path, column: np.ndarray, kind: Literal["auto", "classification", "regression"]
) -> tuple[Literal["classification", "regression"], Tensor, tuple[str, ...]]:
    """The kind, targets, and names of classes, sorted."""
    number = column.dtype.kind in "fiu"
    if column.dtype.kind == "O" and any(value is None for value in column):
        raise DataError(f"{root}: an empty cell in the target column")
    if column.dtype.kind == "f" and not np.isfinite(column).all():
        raise DataError(f"{root}: NaN, infinity or an empty cell in the target column")
    if kind == "auto":
        fraction = column.dtype.kind == "f" and bool((column != np.rint(column)).any())
        kind = "regression" if fraction else "classification"
    if kind == "regression":
        if not number:
            raise DataError(f"{root}: the target of a regression must be a number")
        return kind, torch.from_numpy(column.astype(np.float32)), ()
    values = column.astype(np.int64) if number else column.astype(str)
    found, place = np.unique(values, return_inverse=True)
    return kind, torch.from_numpy(place.reshape(-1).astype(np.int64)), tuple(map(str, found))


class TableFile:
    """Reader of one file of a table. A batch decodes the row groups that its rows are in, and the
    last ones stay decoded: cheap where a site's rows lie together, as files by owner have them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()
        self.names: list[str] = self._schema.names
        self.shape: tuple[int, ...] = (int(self._first[-1]),)
        self.dtype: torch.dtype = torch.float32
        self._columns: list[str] = []
        self._form, self._size = "numbers", 0

    def _open(self) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError:
            raise DataError("reading tables needs pyarrow: pip install 'cupola[parquet]'") from None
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._lock = Lock()
        try:
            if _SUFFIXES[self.path.suffix] == "parquet":
                self._file = pq.ParquetFile(self.path, memory_map=True)
                meta = self._file.metadata
                sizes = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
                self._schema = self._file.schema_arrow
            else:
                self._file = pa.ipc.open_file(pa.memory_map(str(self.path)))
                many = range(self._file.num_record_batches)
                sizes = [self._file.get_batch(i).num_rows for i in many]
                self._schema = self._file.schema
        except (OSError, pa.ArrowInvalid) as error:
            raise DataError(f"{self.path}: not a readable table ({error})") from None
        self._first = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return self.shape[0]

    def choose(self, columns: list[str], alone: bool, size: int) -> None:
        """Which columns are inputs. alone: one, which may hold lists or images."""
        import pyarrow.types as types

        self._columns, self._size = columns, size
        for name in columns:
            if name not in self._schema.names:
                raise DataError(f"{self.path}: no column {name!r}, which other files have")
        kind = self._schema.field(columns[0]).type
        if alone and (types.is_binary(kind) or types.is_large_binary(kind) or _has_bytes(kind)):
            self._form, self.dtype = "images", torch.uint8
            self.shape = (len(self), 3, size, size)
        elif alone and hasattr(kind, "value_type") and _is_number(kind.value_type):
            whole = types.is_integer(kind.value_type)
            self._form, self.dtype = "lists", torch.int64 if whole else torch.float32
            first = self._table(0)[columns[0]][0].as_py() if len(self) else []
            self.shape = (len(self), len(first or []))
        else:
            wrong = [n for n in columns if not _is_number(self._schema.field(n).type)]
            if wrong:
                raise DataError(
                    f"{self.path}: column {wrong[0]!r} is {self._schema.field(wrong[0]).type}, not "
                    "a number; leave it out with drop, or choose one column with inputs"
                )
            self._form, self.dtype = "numbers", torch.float32
            self.shape = (len(self), len(columns))

    def column(self, name: str) -> np.ndarray:
        """A whole column, as numpy has it."""
        many = range(len(self._first) - 1)
        parts = [self._group(i, [name])[name].to_numpy(zero_copy_only=False) for i in many]
        return np.concatenate(parts) if parts else np.empty(0)

    def read(self, places: np.ndarray) -> Tensor:
        made = torch.empty((len(places), *self.shape[1:]), dtype=self.dtype)
        group = np.searchsorted(self._first, places, side="right") - 1
        for number in np.unique(group).tolist():
            own = np.flatnonzero(group == number)
            part = self._table(number).take(places[own] - self._first[number])
            made[torch.from_numpy(own)] = self._numbers(part)
        return made

    def _table(self, number: int) -> Any:
        """The inputs of a row group, decoded."""
        with self._lock:
            if number in self._held:
                self._held.move_to_end(number)
            else:
                self._held[number] = self._group(number, self._columns)
                while len(self._held) > 1 and self._bytes() > GROUP_BYTES:
                    self._held.popitem(last=False)
            return self._held[number]

    def _bytes(self) -> int:
        return sum(table.nbytes for table in self._held.values())

    def _group(self, number: int, columns: list[str]) -> Any:
        import pyarrow as pa

        if _SUFFIXES[self.path.suffix] == "parquet":
            return self._file.read_row_group(number, columns=columns)
        return pa.Table.from_batches([self._file.get_batch(number)]).select(columns)

    def _numbers(self, part: Any) -> Tensor:
        if self._form == "numbers":
            columns = [part[n].to_numpy(zero_copy_only=False) for n in self._columns]
            return torch.from_numpy(np.stack(columns, 1).astype(np.float32))
        column = part[self._columns[0]].combine_chunks()
        if self._form == "images":
            cells = (
                cell["bytes"] if isinstance(cell, dict) else cell for cell in column.to_pylist()
            )
            where = str(self.path)
            pixels = [fitted_image(io.BytesIO(cell or b""), self._size, where) for cell in cells]
            return torch.from_numpy(np.stack(pixels))
        width = self.shape[1]
        if column.null_count or any(len(cell) != width for cell in column):
            raise DataError(
                f"{self.path}, column {self._columns[0]!r}: lists of different lengths; all must "
                f"have {width} numbers, as the first"
            )
        flat = column.flatten()
        if flat.null_count and self.dtype == torch.int64:  # of floats it is a NaN, which is found
            raise DataError(f"{self.path}, column {self._columns[0]!r}: an empty cell in a list")
        values = flat.to_numpy(zero_copy_only=False).reshape(len(column), width)
        return torch.from_numpy(
            values.astype(np.int64 if self.dtype == torch.int64 else np.float32)
        )

    def __getstate__(self) -> dict[str, Any]:
        """By its path: what is computed elsewhere opens the file there."""
        opened = {"_file", "_held", "_lock", "_schema"}
        return {key: value for key, value in self.__dict__.items() if key not in opened}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()


def _is_number(kind: Any) -> bool:
    import pyarrow.types as types

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _has_bytes(kind: Any) -> bool:
    """Hugging Face's form of an image: a struct of its bytes and its path."""
    import pyarrow.types as types

    return bool(types.is_struct(kind)) and kind.get_field_index("bytes") >= 0
