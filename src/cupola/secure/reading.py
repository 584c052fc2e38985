"""Reading questions of a party that nobody trusts: what is not exactly well formed is declined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cupola.federation.message import Declined, Question
from cupola.secure.canonical import is_whole

ILL = "question is not well formed"


def options_of(question: Question) -> Mapping[str, Any]:
    """What a protocol's question says beside the inner one."""
    options = question.options.get("hidden")
    if not isinstance(options, Mapping):
        raise Declined(ILL)
    return options


def whole_in(options: Mapping[str, Any], name: str, largest: int = 2**63 - 1) -> int:
    value = options.get(name)
    if not is_whole(value, largest):
        raise Declined(ILL)
    assert isinstance(value, int)
    return value


def bytes_in(options: Mapping[str, Any], name: str) -> bytes:
    try:
        return bytes.fromhex(options[name])
    except (KeyError, TypeError, ValueError):
        raise Declined(ILL) from None


def hash_in(options: Mapping[str, Any], name: str) -> bytes:
    value = bytes_in(options, name)
    if len(value) != 32:
        raise Declined(ILL)
    return value


def array_in(
    question: Question, name: str, dtype: type[np.generic], shape: tuple[int | None, ...]
) -> np.ndarray:
    """An array of this type and shape. None: of any length."""
    array = question.arrays.get(name)
    if array is None or array.dtype != dtype or array.ndim != len(shape):
        raise Declined(ILL)
    if any(want not in (None, found) for want, found in zip(shape, array.shape, strict=True)):
        raise Declined(ILL)
    return array


def numbers_in(question: Question, name: str) -> tuple[int, ...]:
    return tuple(array_in(question, name, np.int32, (None,)).tolist())


def sites_in(question: Question, name: str, sites: int) -> tuple[int, ...]:
    """Numbers of distinct sites of so many, in increasing order."""
    found = numbers_in(question, name)
    if list(found) != sorted(set(found)) or not all(0 <= site < sites for site in found):
        raise Declined(ILL)
    return found


def rows_in(question: Question, name: str, count: int, width: int) -> tuple[bytes, ...]:
    return tuple(row.tobytes() for row in array_in(question, name, np.uint8, (count, width)))
