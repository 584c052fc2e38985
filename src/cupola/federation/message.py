"""What crosses a site's border: questions and contributions, as named arrays of allowed types.

A message is bytes: magic, length of the header, 8 bytes of weight, a JSON header (names, types and
shapes of arrays, plain options), then the arrays in little-endian order. A question starts with its
three counters, 8 bytes each. No pickle, no code.
Messages are measured without being made: `size` is exact and depends on the layout alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from cupola.errors import FederationError
from cupola.federation.compact import Code, is_code, sent_as
from cupola.federation.compact import opened as opened_array

Arrays = dict[str, np.ndarray]

TYPES = {"float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "bool"}
_MAGIC = b"CUP1"
_PREFIX = struct.Struct("<4sId")
_COUNTERS = struct.Struct("<3q")  # fixed width: how far a run is must not change its bytes
MAX_HEADER = 16 << 20
WITNESS = "#witness"  # of an answer to a witnessed question: the site's proof that it is its own
_ILL_FORMED = (
    ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, struct.error,
)  # fmt: skip


@dataclass(frozen=True)
class Spec:
    """Shape and kind ('float', 'int' or 'bool') that a question allows for one array.

    For masked sums also the largest magnitude of what one site adds (weight included), and how many
    bits a float gets. code: how the array is made smaller on its way (see `compact`); it is opened
    when it arrives. Masked sums take none.
    """

    shape: tuple[int, ...]
    kind: str = "float"
    bound: float | None = None
    bits: int = 64
    code: Code | None = None

    @classmethod
    def of(cls, array: np.ndarray, bound: float | None = None, bits: int = 64) -> Spec:
        return cls(tuple(array.shape), _kind(array.dtype), bound, bits)

    def fits(self, array: np.ndarray) -> bool:
        if self.code is not None:
            return (array.dtype, array.shape) == sent_as(self.code, self.shape)
        return array.shape == self.shape and _kind(array.dtype) == self.kind


_WITNESS = Spec((32,), "int")


@dataclass(frozen=True)
class Question:
    """One question to sites: run the task `task` on these arrays and options.

    step: number of the question within the run; a site answers a step once, and its state is
        versioned by it. round: what the randomness is drawn for (several steps can share a round).
    expects: the arrays an answer may hold; everything else is refused. With `partial` an answer
        may leave arrays out.
    confirmed: the last step the coordinator will never ask again; older site state can go.
    reveals: in a sentence, what the answer tells; written to the ledger.
    protection: what keeps it from telling more ('none', or the mechanism and its noise).
    heaviest: the largest weight an answer may have, for masked sums.
    witnessed: whether sites will be told the total, with a proof (see cupola.secure.witness).
    decides: whether later questions depend on the answer; the coordinator's own affair, not sent.
    """

    task: str
    arrays: Arrays = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    expects: Mapping[str, Spec] = field(default_factory=dict)
    step: int = 0
    round: int = 0
    confirmed: int = -1
    partial: bool = False
    reveals: str = ""
    protection: str = "none"
    heaviest: float = 1.0
    witnessed: bool = False
    decides: bool = True


@dataclass(frozen=True)
class Contribution:
    """A site's answer. In a sum, arrays count `weight` times."""

    arrays: Arrays
    weight: float = 1.0


class Declined(Exception):
    """Raised by a task that gives no answer; `code` is all that crosses the border."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


@lru_cache(maxsize=64)
def _kind(dtype: np.dtype) -> str:
    return {"f": "float", "i": "int", "u": "int", "b": "bool"}.get(dtype.kind, dtype.name)


@lru_cache(maxsize=64)
def _name(dtype: np.dtype) -> str:
    return dtype.name  # numpy puts it together anew every time


def _layout(arrays: Mapping[str, np.ndarray]) -> list[list[Any]]:
    layout = []
    for name, array in arrays.items():
        if _name(array.dtype) not in TYPES:
            raise FederationError(
                f"array '{name}' has type {array.dtype}, which may not cross a site's border; "
                f"allowed: {', '.join(sorted(TYPES))}"
            )
        layout.append([name, _name(array.dtype), list(array.shape)])
    return layout


def _header(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    return json.dumps({**fields, "arrays": _layout(arrays)}, separators=(",", ":")).encode()


def question_fields(question: Question) -> dict[str, Any]:
    """All of a question but its arrays and counters, as plain values."""
    fields = {
        "task": question.task,
        "options": dict(question.options),
        "expects": {n: _spec_fields(s) for n, s in question.expects.items()},
        "partial": question.partial,
        "reveals": question.reveals,
        "protection": question.protection,
    }
    fields |= {"heaviest": question.heaviest} if question.heaviest != 1.0 else {}
    return fields | ({"witnessed": True} if question.witnessed else {})


def question_from(
    fields: Mapping[str, Any], arrays: Arrays, step: int, round: int, confirmed: int
) -> Question:
    """The question that `question_fields` describes."""
    try:
        expects = {n: _spec(*spec) for n, spec in fields["expects"].items()}
        whole = {**fields, "arrays": arrays, "expects": expects}
        question = Question(**whole, step=step, round=round, confirmed=confirmed)
        if not _is_well_typed(question):
            raise ValueError("types")
        return question
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise FederationError("question is not well formed") from error


def _is_well_typed(question: Question) -> bool:
    """Whether the fields of a question from elsewhere have the types they should have."""
    texts = (question.task, question.reveals, question.protection)
    return (
        all(isinstance(text, str) for text in texts)
        and isinstance(question.options, Mapping)
        and isinstance(question.partial, bool)
        and isinstance(question.witnessed, bool)
        and type(question.heaviest) in (int, float)
        and 0 < question.heaviest < math.inf
        and all(_is_spec(spec) for spec in question.expects.values())
    )


def _is_spec(spec: Spec) -> bool:
    return (
        all(type(n) is int and 0 <= n < 2**48 for n in spec.shape)
        and isinstance(spec.kind, str)
        and (spec.bound is None or type(spec.bound) in (int, float))
        and type(spec.bits) is int
        and (spec.code is None or is_code(spec.code, spec.shape))
    )


def _spec_fields(spec: Spec) -> list[Any]:
    if spec.code is not None:
        return [list(spec.shape), spec.kind, spec.bound, spec.bits, list(spec.code)]
    bound = [] if spec.bound is None else [spec.bound, spec.bits]
    return [list(spec.shape), spec.kind, *bound]


def _spec(
    shape: list[int],
    kind: str = "float",
    bound: float | None = None,
    bits: int = 64,
    code: list[Any] | None = None,
) -> Spec:
    return Spec(tuple(shape), kind, bound, bits, None if code is None else (code[0], code[1]))


def _pack(fields: Mapping[str, Any], arrays: Mapping[str, np.ndarray], weight: float) -> bytes:
    header = _header(fields, arrays)
    return b"".join(
        [_PREFIX.pack(_MAGIC, len(header), weight), header, *map(_raw, arrays.values())]
    )


def _raw(array: np.ndarray) -> memoryview:
    """The bytes of an array, little-endian, without a copy where that is how it lies."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


def _unpack(data: bytes) -> tuple[dict[str, Any], Arrays, float]:
    """Fields, arrays and weight; anything not exactly well formed is refused."""
    try:
        magic, length, weight = _PREFIX.unpack_from(data)
        if magic != _MAGIC or length > MAX_HEADER:
            raise ValueError("magic")
        start = _PREFIX.size + length
        header = json.loads(data[_PREFIX.size : start], object_pairs_hook=without_repetition)
        arrays: Arrays = {}
        for name, kind, shape in header.pop("arrays"):
            if not isinstance(name, str) or name in arrays or kind not in TYPES:
                raise ValueError("layout")
            if not all(type(n) is int and 0 <= n < 2**48 for n in shape):
                raise ValueError("shape")
            dtype = np.dtype(kind).newbyteorder("<")
            count = math.prod(shape)
            array = np.frombuffer(data, dtype, count, start).reshape(shape)
            if kind == "bool" and (array.view(np.uint8) > 1).any():  # one flag, one spelling
                raise ValueError("flags")
            arrays[name] = array.astype(np.dtype(kind))  # a copy: writable and aligned
            start += count * dtype.itemsize
        if start != len(data):
            raise ValueError("length")
        return header, arrays, weight
    except _ILL_FORMED as error:
        raise FederationError("message is not well formed") from error


def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON whose keys differ: last-one-wins would let two readers see two things in
    one text."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key twice")
    return dict(pairs)


def encode_question(question: Question) -> bytes:
    counters = _COUNTERS.pack(question.step, question.round, question.confirmed)
    return counters + _pack(question_fields(question), question.arrays, 0.0)


def decode_question(data: bytes) -> Question:
    if len(data) < _COUNTERS.size:
        raise FederationError("message is not well formed")
    fields, arrays, _ = _unpack(data[_COUNTERS.size :])
    return question_from(fields, arrays, *_COUNTERS.unpack_from(data))


def encode_contribution(contribution: Contribution) -> bytes:
    return _pack({}, contribution.arrays, contribution.weight)


def decode_contribution(data: bytes) -> Contribution:
    fields, arrays, weight = _unpack(data)
    if fields:
        raise FederationError("contribution is not well formed")
    return Contribution(arrays, weight)


def digest(question: Question) -> str:
    """Fingerprint of a question: equal if and only if a site would be asked for the same."""
    whole = encode_question(replace(question, confirmed=-1))
    return hashlib.blake2b(whole, digest_size=16).hexdigest()


def content_digest(question: Question, with_round: bool) -> bytes:
    """Fingerprint of what decides an answer: task, options, arrays, and the round if that matters;
    not the step, nor what a question says of itself."""
    facts = {
        "task": question.task,
        "options": dict(question.options),
        "round": question.round if with_round else None,
    }
    header = _header(facts, question.arrays)
    found = hashlib.sha256(len(header).to_bytes(8, "little") + header)
    for array in question.arrays.values():
        found.update(_raw(array))
    return found.digest()


def blank(spec: Spec, like: np.ndarray | None = None) -> np.ndarray:
    """Zeros of this shape in no memory: of the type of `like`, or of 64 bits; a compact array as it
    travels."""
    if spec.code is not None:
        kind, shape = sent_as(spec.code, spec.shape)
        return np.broadcast_to(np.zeros((), kind), shape)
    types = {"float": np.dtype(np.float64), "int": np.dtype(np.int64), "bool": np.dtype(bool)}
    dtype = types[spec.kind] if like is None else like.dtype
    return np.broadcast_to(np.zeros((), dtype), spec.shape)


def question_size(question: Question) -> int:
    """Exact length of `encode_question`, without copying arrays."""
    header = _header(question_fields(question), question.arrays)
    return (
        _COUNTERS.size
        + _PREFIX.size
        + len(header)
        + sum(a.nbytes for a in question.arrays.values())
    )


def contribution_size(arrays: Mapping[str, np.ndarray]) -> int:
    """Exact length of `encode_contribution` for arrays of this layout, without copying them."""
    return _size_of_layout(tuple((n, a.dtype.char, a.shape) for n, a in arrays.items()))


@lru_cache(maxsize=1024)
def _size_of_layout(layout: tuple[tuple[str, str, tuple[int, ...]], ...]) -> int:
    arrays = {n: np.broadcast_to(np.zeros((), kind), shape) for n, kind, shape in layout}
    return _PREFIX.size + len(_header({}, arrays)) + sum(a.nbytes for a in arrays.values())


def largest_answer(question: Question) -> int:
    """Bytes that no answer, with its mark, or refusal of this question exceeds."""
    numbers = sum(math.prod(spec.shape) for spec in question.expects.values())
    names = sum(len(json.dumps(n)) + 24 * len(s.shape) + 64 for n, s in question.expects.items())
    return 1 + _PREFIX.size + 1024 + names + 8 * numbers


def refusal(contribution: Contribution, question: Question) -> str | None:
    """Why an answer cannot be used, as a short code with array names, or None if it can."""
    if not math.isfinite(contribution.weight) or contribution.weight < 0:
        return "invalid weight"
    code = misfit(contribution.arrays, question)
    if code is not None:
        return code
    try:
        arrays = opened(contribution, question).arrays
    except ValueError:
        return "a compact array is not well formed"
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return f"NaN or infinity in '{name}'"
    return None


def opened(contribution: Contribution, question: Question) -> Contribution:
    """An answer with its compact arrays as what they stand for; ValueError where that is
    nothing."""
    coded = {n: s.code for n, s in question.expects.items() if s.code is not None}
    if not coded:
        return contribution
    arrays = {
        name: array
        if (code := coded.get(name)) is None
        else opened_array(code, array, question.expects[name].shape)
        for name, array in contribution.arrays.items()
    }
    return replace(contribution, arrays=arrays)


def misfit(arrays: Mapping[str, np.ndarray], question: Question) -> str | None:
    """Why arrays of this layout are no answer, whatever they hold."""
    for name, array in arrays.items():
        spec = question.expects.get(name)
        if name == WITNESS and question.witnessed:
            spec = _WITNESS
        if spec is None:
            return f"unexpected array '{name}'"
        if not spec.fits(array):
            return f"ill-shaped array '{name}'"
    if not question.partial:
        for name in question.expects:
            if name not in arrays:
                return f"missing array '{name}'"
    return None
