"""A hash of what data hold, so that a resumed run can tell whether it has the same."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from cupola.base.chain import mark
from cupola.data.dataset import Dataset, FederatedData, Source
from cupola.data.lazy import Owners
from cupola.data.stored_rows import Rows

HASHED = 1000  # sites whose rows are hashed, where sites are made one by one


def fingerprint(data: Source | Owners | FederatedData) -> tuple[str, dict[str, Any]]:
    """A hash of values, types and shapes, and what is told of them in words.

    Of more than `HASHED` sites that are made when asked for, the first are hashed; 'hashed' says
    so. What a transform or a loader does is code, and not in it.
    """
    facts: dict[str, Any] = {"kind": data.kind, "classes": data.classes}
    facts["input"] = list(data.input_shape)
    marks: list[str] = []
    if isinstance(data, Source):
        for key in ("train", "validation", "test"):
            part = getattr(data, key)
            if part is not None:
                facts[key] = len(part)
                marks.append(_rows(part))
        marks += [_bytes(a) for a in (data.groups, data.local_test) if a is not None]
        return mark(repr(facts).encode(), *(m.encode() for m in marks)), facts
    sites = len(data.owners) if isinstance(data, Owners) else len(data)
    facts |= {"sites": sites, "hashed": min(sites, HASHED)}
    for i in range(facts["hashed"]):
        held = data.read(i) if isinstance(data, Owners) else data.site(i)
        marks += [_rows(held.train), _rows(held.validation), _rows(held.test)]
    marks += [_rows(part) for _, part in sorted(data.public.items())]
    return mark(repr(facts).encode(), *(m.encode() for m in marks)), facts


def _rows(data: Dataset) -> str:
    """Of rows in files, block by block."""
    if isinstance(data.x, Rows):
        told = f"{data.x.dtype} {tuple(data.x.shape)}".encode()
        return mark(told, *(_bytes(block).encode() for block in data.x.blocks())) + _bytes(data.y)
    return _bytes(data.x) + _bytes(data.y)


def _bytes(values: Tensor | np.ndarray) -> str:
    array = values.numpy() if isinstance(values, Tensor) else values
    about = f"{array.dtype} {array.shape}".encode()
    return mark(about, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
