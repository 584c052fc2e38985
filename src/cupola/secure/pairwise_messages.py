"""The questions of pairwise masks, as a coordinator puts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cupola.federation.message import Arrays, Declined, Question, Spec
from cupola.secure.encoding import Layout, scales_hash
from cupola.secure.envelope import Statement
from cupola.secure.pairwise_keys import KEYS, SIGNATURE, Cohort, groups, sealed_size
from cupola.secure.reading import ILL, bytes_in
from cupola.secure.roster import Roster
from cupola.secure.shamir import SHARE
from cupola.secure.wrapped_question import ANSWER, CHECK, layout_of, outer_question, question_hash


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
        return self.roster.statement("", self.inner.step, self.number, *hashes)

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


def dealt_in(options: Mapping[str, Any], cohort: Cohort) -> tuple[int, ...]:
    """Those of the cohort who dealt shares, from one bit each."""
    data, size = bytes_in(options, "dealt"), len(cohort.sites)
    if len(data) != -(-size // 8):
        raise Declined(ILL)
    bits = np.unpackbits(as_array(data), count=size)
    return tuple(site for site, bit in zip(cohort.sites, bits, strict=True) if bit)
