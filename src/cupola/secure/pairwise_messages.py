"""The questions of pairwise masks: how a coordinator puts them, and how a site reads them.

A site takes nothing in a question for granted: whatever is not exactly well formed is declined.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cupola.federation import Arrays, Declined, Question, Spec
from cupola.secure.canonical import is_whole
from cupola.secure.encoding import Layout, scales_hash
from cupola.secure.envelope import Statement
from cupola.secure.member import ANSWER, CHECK
from cupola.secure.pairwise_keys import KEYS, SIGNATURE, Cohort, groups, sealed_size
from cupola.secure.roster import Roster
from cupola.secure.shamir import SHARE
from cupola.secure.wrapped_question import layout_of, outer_question, question_hash

ILL = "question is not well formed"


@dataclass(frozen=True)
class Attempt:
    """A coordinator's attempt at one question. check: the checksums' key."""

    roster: Roster
    inner: Question
    number: int
    check: bytes

    @cached_property
    def layout(self) -> Layout:
        return layout_of(self.inner, len(self.roster.sites))

    @cached_property
    def count(self) -> int:
        return groups(self.inner)

    @cached_property
    def statement(self) -> Statement:
        """What sites sign, but for their names."""
        hashes = (question_hash(self.inner), scales_hash(self.layout))
        step = self.inner.step
        return Statement(self.roster.study, self.roster.digest, step, self.number, *hashes, "")

    def keys(self) -> Question:
        facts = {
            "roster": self.roster.digest.hex(),
            "question": self.statement.question.hex(),
            "layout": self.statement.layout.hex(),
            "seeds": self.count,
        }
        expects = {"keys": _bytes(KEYS), "told": Spec((len(self.roster.sites),), "bool")}
        return self._question("pairwise keys", {}, expects, facts)

    def shares(self, cohort: Cohort) -> Question:
        arrays = {"sites": numbers(cohort.sites), "keys": table(cohort.keys, KEYS)}
        picks = cohort.graph.picks
        sealed = _bytes(picks, sealed_size(self.count))
        expects = {"picks": Spec((picks,), "int"), "sealed": sealed}
        return self._question("pairwise shares", arrays, expects)

    def masked(self, cohort: Cohort, dealt: Sequence[int], edges: bytes) -> Question:
        expects = {"present": Spec((self.count - 1,), "bool"), "signature": _bytes(SIGNATURE)}
        for entry in self.layout:
            expects[ANSWER + entry.name] = Spec((entry.size,), "int")
            expects[CHECK + entry.name] = _bytes(16)
        bits = np.packbits([site in set(dealt) for site in cohort.sites])
        facts = {
            "attempt": self.number,
            "check": self.check.hex(),
            "dealt": bits.tobytes().hex(),
            "edges": edges.hex(),
        }
        question = outer_question("pairwise masked", self.inner, expects, facts)
        return replace(question, partial=False)

    def survivors(
        self, sites: Sequence[int], present: np.ndarray, signatures: Sequence[bytes]
    ) -> Question:
        arrays = {
            "survivors": numbers(sites),
            "present": present,
            "signatures": table(signatures, SIGNATURE),
        }
        return self._question("pairwise survivors", arrays, {"signature": _bytes(SIGNATURE)})

    def unmask(
        self, signatures: Mapping[int, bytes], dealers: Sequence[int], sealed: Sequence[bytes]
    ) -> Question:
        arrays = {
            "signers": numbers(list(signatures)),
            "signatures": table(list(signatures.values()), SIGNATURE),
            "dealers": numbers(dealers),
            "sealed": table(sealed, sealed_size(self.count)),
        }
        rows = 1 + len(dealers)
        expects = {"shares": _bytes(rows, self.count * SHARE), "valid": Spec((rows,), "bool")}
        return self._question("pairwise unmask", arrays, expects)

    def _question(
        self, task: str, arrays: Arrays, expects: dict[str, Spec], facts: Mapping[str, Any] = {}
    ) -> Question:
        inner = self.inner
        return Question(
            task,
            arrays,
            {"hidden": {"attempt": self.number, **facts}},
            expects,
            step=inner.step,
            round=inner.round,
            confirmed=inner.confirmed,
        )


def _bytes(*shape: int) -> Spec:
    return Spec(shape, "int")


def numbers(sites: Sequence[int]) -> np.ndarray:
    return np.array(sites, np.int32)


def table(rows: Sequence[bytes], width: int) -> np.ndarray:
    return as_array(b"".join(rows)).reshape(len(rows), width)


def as_array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


# Reading


def options_of(question: Question) -> Mapping[str, Any]:
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


def sites_in(question: Question, name: str, roster: Roster) -> tuple[int, ...]:
    """Numbers of distinct sites, in increasing order."""
    array = question.arrays.get(name)
    if array is None or array.dtype != np.int32 or array.ndim != 1:
        raise Declined(ILL)
    found = array.tolist()
    if found != sorted(set(found)) or (
        found and not 0 <= found[0] <= found[-1] < len(roster.sites)
    ):
        raise Declined(ILL)
    return tuple(found)


def rows_in(question: Question, name: str, count: int, width: int) -> tuple[bytes, ...]:
    array = question.arrays.get(name)
    if array is None or array.dtype != np.uint8 or array.shape != (count, width):
        raise Declined(ILL)
    return tuple(row.tobytes() for row in array)


def flags_in(question: Question, name: str, shape: tuple[int, ...]) -> np.ndarray:
    array = question.arrays.get(name)
    if array is None or array.dtype != np.bool_ or array.shape != shape:
        raise Declined(ILL)
    return array.copy()


def dealt_in(options: Mapping[str, Any], cohort: Cohort) -> tuple[int, ...]:
    """Those of the cohort who dealt shares, from one bit each."""
    data, size = bytes_in(options, "dealt"), len(cohort.sites)
    if len(data) != -(-size // 8):
        raise Declined(ILL)
    bits = np.unpackbits(as_array(data), count=size)
    return tuple(site for site, bit in zip(cohort.sites, bits, strict=True) if bit)
