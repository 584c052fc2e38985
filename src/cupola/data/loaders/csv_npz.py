"""The user's own tables and arrays: csv and npz."""

from __future__ import annotations

import csv as csv_module
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cupola.base.suggest import suggest
from cupola.data.dataset import Dataset, Kind, Source, kind_of
from cupola.data.loaders._common import images, need, numbered, public_split, read_npz
from cupola.data.loaders.bundled import standardised
from cupola.data.loading import dataset
from cupola.data.stored_rows import Rows, blocks
from cupola.errors import DataError


@dataset("csv")
def csv(
    path: str | Path,
    target: str,
    site: str | None = None,
    drop: Sequence[str] = (),
    kind: Literal["auto", "classification", "regression"] = "auto",
    test: float = 0.2,
    standardise: bool = False,
    delimiter: str = ",",
) -> Source:
    """A table with a header: column `target` is predicted from all others but `site` (natural
    owner) and `drop`. Every feature must be a finite number.

    kind: auto is regression if the target has a number that is not whole, else classification.
    test: public share. standardise: features to mean 0, deviation 1 of the training part (in
    simulation; real sites would have to agree on it).
    """
    file = Path(path).expanduser()
    header, rows, lines = _read(file, delimiter)
    for name in [target, *([] if site is None else [site]), *drop]:
        if name not in header:
            raise DataError(f"{file}: no column {name!r}; {suggest(name, header, 'it has')}")
    features = [i for i, name in enumerate(header) if name not in (target, site, *drop)]
    if not features:
        raise DataError(f"{file}: no column is left to predict {target!r} from")
    x = np.array(
        [
            [_number(file, line, header[i], row[i]) for i in features]
            for row, line in zip(rows, lines)
        ],
        np.float32,
    )
    column = header.index(target)
    cells = [row[column].strip() for row in rows]
    for cell, line in zip(cells, lines):
        if cell == "" or cell.lower() == "nan":
            raise DataError(f"{file}, line {line}, column {target!r}: no target")
    if kind == "auto":
        kind = "regression" if any(_fraction(c) for c in cells) else "classification"
    names: tuple[str, ...] = ()
    if kind == "regression":
        values = [_number(file, line, target, c) for c, line in zip(cells, lines)]
        y, labels = torch.tensor(values, dtype=torch.float32), None
    else:
        found = sorted(set(cells), key=lambda c: (0, float(c), c) if _is_number(c) else (1, 0.0, c))
        names, place = tuple(found), {c: i for i, c in enumerate(found)}
        labels = np.array([place[c] for c in cells], np.int64)
        y = torch.from_numpy(labels)
    train, held, kept = public_split(Dataset(torch.from_numpy(x), y), test, labels)
    if standardise:
        train, held = standardised(train, held)
    groups, group_names = None, ()  # type: tuple[np.ndarray | None, tuple[str, ...]]
    if site is not None:
        owner = header.index(site)
        groups, group_names = numbered(np.array([row[owner].strip() for row in rows])[kept])
    return Source(
        file.stem, kind, train, held, None if kind == "regression" else len(names), names,
        groups=groups, group_names=group_names,
    )  # fmt: skip


def _read(file: Path, delimiter: str) -> tuple[list[str], list[list[str]], list[int]]:
    """Header, rows, and the line each row ends on."""
    rows, lines = [], []
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv_module.reader(text, delimiter=delimiter)
            for row in reader:
                if row:
                    rows.append(row)
                    lines.append(reader.line_num)
    except (OSError, UnicodeDecodeError, csv_module.Error) as error:
        raise DataError(f"{file}: cannot be read as csv ({error})") from None
    if len(rows) < 2:
        raise DataError(f"{file}: needs a header and at least one row")
    header = [name.strip() for name in rows[0]]
    for row, line in zip(rows, lines):
        if len(row) != len(header):
            raise DataError(f"{file}, line {line}: {len(row)} cells, but {len(header)} columns")
    return header, rows[1:], lines[1:]


def _number(file: Path, line: int, column: str, cell: str) -> float:
    if not _is_number(cell):
        raise DataError(
            f"{file}, line {line}, column {column!r}: {cell!r} is not a finite number; "
            "correct it, or leave the column out with drop"
        )
    return float(cell)


def _is_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def _fraction(cell: str) -> bool:
    return _is_number(cell) and not float(cell).is_integer()


@dataset("npz")
def npz(path: str | Path, kind: Kind | None = None, test: float = 0.2) -> Source:
    """Arrays of your own: x, y (of which `test` is the public share), or x_train, y_train, x_test,
    y_test. Optional, one for each training row: site (natural owner), local_test (held out there).

    uint8 arrays are images (grey, NHWC or NCHW), other integers tokens, floats features; the kind
    is read off the types if not given. class_names may be stored too.
    """
    file = Path(path).expanduser()
    return from_arrays(file, read_npz(file), kind, test, as_inputs)


def from_arrays(
    file: Path,
    stored: Mapping[str, Any],
    kind: Kind | None,
    test: float,
    inputs: Callable[[Any], Tensor | Rows],
    each: str = "array",
) -> Source:
    """A data set from its named arrays. inputs: makes a data set's inputs of what is stored."""
    if "x_train" in stored:
        need(stored, ["y_train"], file, each)
        train = Dataset(inputs(stored["x_train"]), _targets(stored["y_train"], kind))
        held = None
        if "x_test" in stored:
            need(stored, ["y_test"], file, each)
            held = Dataset(inputs(stored["x_test"]), _targets(stored["y_test"], kind))
        kept = np.ones(len(train), bool)
    else:
        need(stored, ["x", "y"], file, each)
        data = Dataset(inputs(stored["x"]), _targets(stored["y"], kind))
        plain = not data.y.is_floating_point() and data.y.ndim == 1
        train, held, kept = public_split(data, test, data.y.numpy() if plain else None)
    kind = kind or kind_of(train)
    names = tuple(str(c) for c in stored.get("class_names", ()))
    tops = [int(d.y.max()) for d in (train, held) if d is not None and d.y.numel()]
    count = None if kind == "regression" else len(names) or max(tops, default=-1) + 1
    groups, group_names = None, ()  # type: tuple[np.ndarray | None, tuple[str, ...]]
    for key in ("site", "local_test"):
        if key in stored and len(stored[key]) != len(kept):
            raise DataError(f"{file}: {key} has {len(stored[key])} rows, x has {len(kept)}")
    if "site" in stored:
        groups, group_names = numbered(stored["site"][kept])
    local = stored["local_test"][kept].astype(bool) if "local_test" in stored else None
    text = train.x.dtype == torch.int64
    return Source(
        file.stem, kind, train, held, count, names, groups, group_names, local,
        vocabulary=_vocabulary(train, held) if text else None,
    )  # fmt: skip


def as_inputs(array: np.ndarray) -> Tensor:
    """What models take: uint8 images with channels first, float32 features, int64 tokens."""
    if array.dtype == np.uint8 and array.ndim >= 3:
        return images(array)
    if np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(array.astype(np.float32, copy=False))
    if np.issubdtype(array.dtype, np.integer):
        return torch.from_numpy(array.astype(np.int64, copy=False))
    raise DataError(f"inputs must be numbers, not {array.dtype}")


def _targets(array: np.ndarray, kind: Kind | None) -> Tensor:
    if kind == "regression" or np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(array.astype(np.float32))
    if np.issubdtype(array.dtype, np.integer) or array.dtype == bool:
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        return torch.from_numpy(array.astype(np.int64))
    raise DataError(f"targets must be numbers, not {array.dtype}")


def _vocabulary(train: Dataset, test: Dataset | None) -> int:
    low, top = 0, -1
    for x in (block for d in (train, test) if d is not None for block in blocks(d.x) if len(block)):
        low, top = min(low, int(x.min())), max(top, int(x.max()))
    if low < 0:
        raise DataError("tokens must be 0 or more; store features as floats")
    return top + 1
