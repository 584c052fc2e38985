"""Data as people have them in Python: arrays, torch and Hugging Face data sets, pandas frames.

    converted((x, y))                                    # one data set, still to be cut into sites
    converted({"train": (x, y), "test": (x2, y2)})       # with public parts; a DatasetDict is one
    converted((frame, "outcome"))                        # a column is what is to be predicted
    converted(({"input_ids": ids, "attention_mask": m}, y))  # what a tokeniser gives
    converted([(x0, y0), (x1, y1)])                      # the sites, as given
    converted({"Bern": frame_a, "Rome": frame_b}, ...)   # the sites, with names

pandas and `datasets` are recognised by what they offer; neither is imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import data as torch_data

from cupola.data.dataset import NO_LABEL, Dataset, FederatedData, SiteData, Source, kind_of
from cupola.data.lazy import Owners
from cupola.data.stored_rows import blocks
from cupola.data.tokenised import FIELDS, stacked
from cupola.errors import DataError

TOKENS = FIELDS[0]
SPLITS = ("train", "validation", "test")
_WAY_OUT = (
    "pass (x, y), ({'input_ids': ...}, y), (frame, 'column'), a torch or Hugging Face data set, a "
    "cupola Source or FederatedData, or a list or mapping of these, one for each site"
)


@dataclass(frozen=True)
class _Rows:
    """Inputs, and targets that may still be words."""

    x: Tensor
    y: np.ndarray


def converted(given: Any, name: str = "data") -> Source | Owners | FederatedData:
    """A data set of Cupola's, of whatever somebody passed. name: for messages and reports.

    Floats become float32; images are uint8 (n, C, H, W) or (n, H, W); other integers stay integers,
    that is, tokens. Targets: integers, words or booleans are classes, floats a regression. A
    mapping of 'train', 'validation' and 'test' is one data set, one with 'input_ids' are columns,
    any other mapping is one of sites. Where there are 'input_ids', a tokeniser's fields are the
    inputs, and columns that are neither they nor the target are left out.
    """
    if isinstance(given, Source | Owners | FederatedData):
        return given
    if isinstance(given, Mapping) and _is_split(given):
        return _source(given, name)
    if isinstance(given, Mapping) and TOKENS not in given:
        return _sites(list(given.values()), name, [str(key) for key in given])
    if isinstance(given, list) or _is_many(given):
        return _sites(list(given), name)
    return _source({"train": given}, name)


def _is_split(given: Mapping[Any, Any]) -> bool:
    return "train" in given and set(given) <= set(SPLITS)


def _is_many(given: Any) -> bool:
    """Whether a tuple is one of sites: of two things, it is (x, y), unless they are data sets."""
    if not isinstance(given, tuple):
        return False
    return len(given) != 2 or all(
        isinstance(part, tuple | Dataset | SiteData | torch_data.Dataset) for part in given
    )


# One data set, and sites


def _source(parts: Mapping[str, Any], name: str) -> Source:
    if all(isinstance(part, Dataset) for part in parts.values()):
        made, words = dict(parts), tuple[str, ...]()
    else:
        read = {key: _read(part, f"{name}: {key}" if len(parts) > 1 else name)
                for key, part in parts.items()}  # fmt: skip
        made, words = _encoded(read, name)
    if not len(made["train"]):
        raise DataError(f"{name} holds no rows: there is nothing to train on")
    kind, classes, tokens = _facts(made.values(), words)
    return Source(
        name=name,
        kind=kind,  # type: ignore[arg-type]
        train=made["train"],
        test=made.get("test"),
        validation=made.get("validation"),
        classes=classes,
        class_names=words,
        vocabulary=tokens,
    )


def _sites(given: Sequence[Any], name: str, names: Sequence[str] | None = None) -> FederatedData:
    if not given:
        raise DataError(f"{name} holds no sites; {_WAY_OUT}")
    said = list(names or (f"site {i}" for i in range(len(given))))
    whole: dict[str, Any] = {}
    for site, held in zip(said, given):
        if isinstance(held, SiteData):
            parts: Mapping[str, Any] = {key: getattr(held, key) for key in SPLITS}
        else:
            parts = held if isinstance(held, Mapping) and _is_split(held) else {"train": held}
        whole |= {f"{site}/{key}": part for key, part in parts.items()}
    if all(isinstance(part, Dataset) for part in whole.values()):
        made, words = whole, tuple[str, ...]()
    else:
        read = {key: _read(part, f"{name}: {key.rpartition('/')[0]}")
                for key, part in whole.items()}  # fmt: skip
        made, words = _encoded(read, name)
    shapes = {tuple(part.x.shape[1:]): key for key, part in made.items()}
    if len(shapes) > 1:
        (one, at), (other, there) = list(shapes.items())[:2]
        raise DataError(
            f"{name}: inputs of {at.rpartition('/')[0]} have the shape {one}, those of "
            f"{there.rpartition('/')[0]} {other}; all sites need the same"
        )
    if not any(len(part) for part in made.values()):
        raise DataError(f"{name} holds no rows: there is nothing to train on")
    kind, classes, tokens = _facts(made.values(), words)
    _require_labels(made, classes, kind, name)
    sites = [
        SiteData(*(made.get(f"{site}/{key}") for key in SPLITS))  # type: ignore[arg-type]
        for site in said
    ]
    facts: dict[str, Any] = {"kind": kind, "classes": classes, "class_names": words}
    facts |= {"name": name, "vocabulary": tokens}
    if names is not None:
        facts["site_name"] = list(names).__getitem__
    return FederatedData.from_arrays(sites, **facts)


def _facts(parts: Iterable[Dataset], words: Sequence[str]) -> tuple[str, int | None, int | None]:
    """Kind of task, number of classes, and number of tokens where inputs are tokens."""
    held = [part for part in parts if len(part)]
    kind = kind_of(held[0])
    tokens = None
    if held[0].x.dtype == torch.int64:
        tokens = 1 + max(int(block.max()) for part in held for block in blocks(part.x))
    if kind == "regression":
        return kind, None, tokens
    if words:
        return kind, len(words), tokens
    counted = (part.y[part.y != NO_LABEL] if kind == "segmentation" else part.y for part in held)
    classes = 1 + max((int(y.max()) for y in counted if y.numel()), default=-1)
    return kind, max(classes, tokens or 0) if kind == "language" else max(classes, 1), tokens


def _require_labels(
    parts: Mapping[str, Dataset], classes: int | None, kind: str, name: str
) -> None:
    for key, part in parts.items():
        if classes is not None and part.y.is_floating_point():
            raise DataError(
                f"{name}: targets of {key.rpartition('/')[0]} are floats, others are {kind} labels"
            )
        if classes is not None and len(part) and int(part.y.min()) < 0:
            raise DataError(
                f"{name}: {key.rpartition('/')[0]} has the label {int(part.y.min())}; classes are "
                "counted from 0"
            )


# Rows


def _read(given: Any, said: str) -> _Rows:
    """Rows of any form."""
    if given is None:
        raise DataError(f"{said} is None; {_WAY_OUT}")
    if isinstance(given, Dataset):  # among others, that are not: as it is used
        return _Rows(given.inputs(), given.y.numpy())
    target = None
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str):
        given, target = given
    if _is_hugging_face(given):
        return _of_columns(_hugging_face(given, said), target, said)
    if _is_frame(given):
        return _of_columns({str(c): given[c] for c in given.columns}, target, said)
    if isinstance(given, torch_data.Dataset):
        given = _stacked(given, said)
    if isinstance(given, Mapping):
        return _of_columns(given, target, said)
    if target is not None:
        raise DataError(f"{said}: '{target}' names a column, but this is no frame; {_WAY_OUT}")
    if not isinstance(given, tuple) or len(given) != 2:
        raise DataError(f"{said} is {_described(given)}; {_WAY_OUT}")
    x, y = given
    if _is_frame(x):
        x = {str(c): x[c] for c in x.columns}
    inputs = _of_inputs(x, said) if isinstance(x, Mapping) else _inputs(x, said)
    targets = _targets(y, said)
    if len(inputs) != len(targets):
        raise DataError(
            f"{said}: {len(inputs)} inputs but {len(targets)} targets: one for each is needed"
        )
    return _Rows(inputs, targets)


def _described(given: Any) -> str:
    shape = getattr(given, "shape", None)
    word = type(given).__name__
    told = f" of shape {tuple(shape)}" if shape is not None else ""
    told = f" of {len(given)}" if isinstance(given, tuple) else told
    return f"{'an' if word[0].lower() in 'aeiou' else 'a'} {word}{told}"


def _is_frame(given: Any) -> bool:
    """pandas, polars and the like: columns by name."""
    return hasattr(given, "columns") and hasattr(given, "__getitem__") and hasattr(given, "shape")


def _is_hugging_face(given: Any) -> bool:
    return hasattr(given, "column_names") and hasattr(given, "with_format")


def _hugging_face(given: Any, said: str) -> dict[str, Any]:
    """Columns of a `datasets.Dataset`; images as arrays."""
    if not hasattr(given, "__len__"):
        raise DataError(
            f"{said} is streamed; sites need rows by number: load it with streaming=False"
        )
    read = given.with_format("numpy")[:]
    words = {
        name: list(names)
        for name, feature in (given.features or {}).items()
        if (names := getattr(feature, "names", None))
    }
    return {
        name: np.array(words[name], dtype=str)[column] if name in words else column
        for name, column in read.items()
    }


def _of_columns(columns: Mapping[str, Any], target: str | None, said: str) -> _Rows:
    """The target, and all other columns as inputs: one of arrays, or numbers side by side."""
    if target is None:
        found = [name for name in columns if name in ("label", "labels", "target", "y")]
        if len(found) != 1:
            raise DataError(
                f"{said}: say which column is to be predicted: data=(frame, 'column'); there are "
                + ", ".join(columns)
            )
        target = found[0]
    if target not in columns:
        raise DataError(f"{said} has no column '{target}'; there are: {', '.join(columns)}")
    others = {name: column for name, column in columns.items() if name != target}
    if not others:
        raise DataError(f"{said} has no column but '{target}': there is nothing to predict it from")
    if TOKENS in others:
        others = {name: column for name, column in others.items() if name in FIELDS}
    y = _targets(columns[target], f"{said}: column '{target}'")
    return _Rows(_of_inputs(others, said), y)


def _of_inputs(columns: Mapping[str, Any], said: str) -> Tensor:
    """Inputs from columns: a tokeniser's fields, one of arrays, or numbers side by side."""
    arrays = {name: _array(column, f"{said}: column '{name}'") for name, column in columns.items()}
    if TOKENS in arrays:
        try:
            return stacked({name: _integers(array, name) for name, array in arrays.items()})
        except DataError as error:
            raise DataError(f"{said}: {error}") from None
    if len(arrays) == 1 and (only := next(iter(arrays.values()))).ndim > 1:
        return _inputs(only, said)
    numbers = [_number(column, f"{said}: column '{name}'") for name, column in arrays.items()]
    return _inputs(np.column_stack(numbers), said)


def _stacked(given: Any, said: str) -> Any:
    """All items of a torch data set: (inputs, targets), either of which may be columns."""
    if isinstance(given, torch_data.TensorDataset):
        if len(given.tensors) != 2:
            raise DataError(f"{said} has {len(given.tensors)} tensors; inputs and targets are two")
        return given.tensors[0], given.tensors[1]
    if not hasattr(given, "__len__"):
        raise DataError(
            f"{said} is an iterable data set without a length; sites need rows by number: use a "
            "data set with __getitem__ and __len__"
        )
    items = [given[i] for i in range(len(given))]
    if not items:
        raise DataError(f"{said} holds no rows: there is nothing to train on")
    if all(isinstance(item, Mapping) for item in items):
        return _columns(items, said)
    if not all(isinstance(item, tuple | list) and len(item) == 2 for item in items):
        raise DataError(
            f"{said}: its items must be (input, target), or mappings of one form with a 'label', "
            f"not {_described(items[0])}"
        )
    x, y = zip(*items)
    made: Any = _columns(x, said) if isinstance(x[0], Mapping) else _column(x, f"{said}: inputs")
    return made, _column(y, f"{said}: targets")


def _columns(items: Sequence[Any], said: str) -> dict[str, np.ndarray]:
    """Mappings of one form as columns."""
    keys = list(items[0])
    for i, item in enumerate(items):
        if not isinstance(item, Mapping) or item.keys() != items[0].keys():
            raise DataError(
                f"{said}: item {i} is {_described(item)}, not a mapping of {', '.join(keys)} as "
                "item 0"
            )
    return {key: _column([item[key] for item in items], f"{said}: column '{key}'") for key in keys}


def _column(values: Sequence[Any], said: str) -> np.ndarray:
    """Values of all items as one array."""
    arrays = [_array(one, said) for one in values]
    _require_one_shape(arrays, said)
    return np.stack(arrays)


def _require_one_shape(rows: Sequence[np.ndarray], said: str) -> None:
    shapes = sorted({one.shape for one in rows})
    if len(shapes) > 1:
        raise DataError(
            f"{said}: rows have different shapes, {shapes[0]} and {shapes[1]}; all need one: of "
            "texts, let the tokeniser pad them (padding='max_length')"
        )


# Numbers


def _array(values: Any, said: str) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    try:
        found = np.asarray(values)
    except (ValueError, TypeError) as error:
        _require_one_shape(_rows(values), said)
        raise DataError(f"{said} is no array: {error}") from None
    if found.dtype == object and found.ndim == 1 and (rows := _rows(found)):
        _require_one_shape(rows, said)
        return np.stack(rows)
    return found


def _rows(values: Any) -> list[np.ndarray]:
    """Values as an array each, if each is one."""
    try:
        rows = [np.asarray(one) for one in values]
    except (ValueError, TypeError):
        return []
    return rows if all(one.ndim for one in rows) else []


def _number(column: Any, said: str) -> np.ndarray:
    """A column as one number for each row."""
    values = _array(column, said)
    if values.dtype.kind not in "fiub" or values.ndim != 1:
        raise DataError(
            f"{said} holds no numbers ({values.dtype}); encode it first, for example with "
            "pandas.get_dummies, or leave it out"
        )
    return values.astype(np.float32)


def _integers(values: np.ndarray, name: str) -> Tensor:
    if values.dtype.kind not in "iub":
        raise DataError(f"column '{name}' holds {values.dtype}, not a tokeniser's integers")
    return torch.from_numpy(values.astype(np.int64))


def _inputs(values: Any, said: str) -> Tensor:
    array = _array(values, f"{said}: x")
    kind = array.dtype.kind
    if kind not in "fiub" or array.dtype.hasobject:
        raise DataError(f"{said}: x holds {array.dtype}, not numbers")
    if array.ndim == 0:
        raise DataError(f"{said}: x is {_described(values)}; it needs a row for each sample")
    if array.ndim == 1:
        array = array[:, None]
    if 0 in array.shape[1:]:
        raise DataError(f"{said}: x has the shape {array.shape}: its rows hold nothing")
    if array.dtype == np.uint8:
        if array.ndim == 4 and array.shape[-1] in (1, 3, 4) and array.shape[1] not in (1, 3, 4):
            raise DataError(
                f"{said}: images {array.shape} have their channels last; pass "
                "x.transpose(0, 3, 1, 2)"
            )
        array = array[:, None] if array.ndim == 3 else array
        return torch.from_numpy(np.ascontiguousarray(array))
    wanted = np.float32 if kind in "fb" else np.int64
    return torch.from_numpy(np.ascontiguousarray(array, wanted))


def _targets(values: Any, said: str) -> np.ndarray:
    if values is None:
        raise DataError(f"{said}: y is None; every row needs a target")
    array = _array(values, f"{said}: y")
    if array.ndim == 0:
        raise DataError(f"{said}: y is {_described(values)}; it needs a target for each row")
    if array.dtype.kind in "OUS":
        if any(word is None or word != word for word in array.reshape(-1)):
            raise DataError(f"{said}: targets are missing in some rows; leave these rows out")
        return array.astype(str)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{said}: y holds {array.dtype}, not numbers or words")
    if array.dtype.kind != "f" and array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]  # a column of labels
    return array


def encoded_targets(values: Any, said: str) -> tuple[Tensor, tuple[str, ...]]:
    """Targets as numbers, and what classes are called, if they are words."""
    y = _targets(values, said)
    made, words = _encoded({"all": _Rows(torch.empty(len(y), 0), y)}, said)
    return made["all"].y, words


def _encoded(parts: Mapping[str, _Rows], name: str) -> tuple[dict[str, Dataset], tuple[str, ...]]:
    """Targets as numbers, the same in all parts; and what classes are called, if they are words."""
    kinds = {part.y.dtype.kind for part in parts.values() if len(part.y)}
    worded = bool(kinds & set("US"))
    if worded and len(kinds) > 1:
        raise DataError(f"{name}: targets are words in some parts and numbers in others")
    if "f" in kinds and kinds & set("iub"):
        raise DataError(f"{name}: targets are floats in some parts and integers in others")
    words: tuple[str, ...] = ()
    if worded:
        found = [part.y for part in parts.values() if len(part.y)]
        words = tuple(str(word) for word in np.unique(np.concatenate(found)))
    made = {}
    for key, part in parts.items():
        y = np.searchsorted(words, part.y) if worded else part.y
        wanted = np.float32 if y.dtype.kind == "f" else np.int64
        made[key] = Dataset(part.x, torch.from_numpy(np.ascontiguousarray(y, wanted)))
    return made, words
