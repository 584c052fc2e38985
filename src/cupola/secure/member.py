"""A site among the parties of masked sums: its keys, the roster it agreed to, what it answered."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cupola.federation.message import WITNESS, Arrays, Contribution, Declined, Question
from cupola.federation.replay import OFF_PATH, Replay
from cupola.federation.site import SiteContext, task
from cupola.secure.canonical import digest
from cupola.secure.checksum import checksum, to_bytes
from cupola.secure.durable_dict import Memory
from cupola.secure.encoding import Entry, Layout, layout_hash, scales_hash
from cupola.secure.envelope import seal
from cupola.secure.identity import Identity
from cupola.secure.mask_stream import P, add_mask, mask_key, mask_residue, new_seed
from cupola.secure.reading import hash_in, options_of, whole_in
from cupola.secure.roster import Roster
from cupola.secure.witness import proof, question_key, tag, to_limbs
from cupola.secure.wrapped_question import (
    ANSWER,
    CHECK,
    hidden_values,
    inner_question,
    layout_of,
    question_hash,
)

SECRET = "witness"  # under which a member remembers what all sites share
_WEIGHTS = np.random.Generator(np.random.PCG64(1)).integers(-(2**63), 2**63, 1 << 14) | 1
_FACTOR = 0x9E3779B97F4A7C15


@dataclass
class Member:
    """One site's side. memory: steps and the questions it answered under them, durable.
    unmasked: tasks that it agreed to answer without masks. gone: says which sites the others go on
    without (see `lost_sites`). replay: its copy of the program, where it
    follows one (see `replayed_totals`)."""

    identity: Identity
    roster: Roster
    index: int
    memory: Memory = field(default_factory=Memory)
    unmasked: Container[str] = frozenset()
    replay: Replay | None = None
    gone: Callable[[], frozenset[str]] = frozenset

    @property
    def free(self) -> frozenset[str]:
        """Sites that differences of totals may tell of."""
        return self.roster.leaves | self.gone()

    def answers(self, task: str) -> bool:
        """Whether a task may be asked as it is, without a protocol around it."""
        protocol = task in ("masked", "open") or task.startswith(("pairwise ", "replay "))
        return protocol or task in self.unmasked

    def agree(self, roster: Any, step: int, question: bytes, scales: bytes) -> None:
        """Refuse a study whose roster is not the pinned one, a second question in a step, and a
        question in a second encoding: other bounds tell more of the same numbers."""
        if roster != self.roster.digest.hex():
            raise Declined("the roster is not the one this site agreed to")
        if self.replay is not None and step == self.replay.step:
            due = self.replay.due()
            if due is None or question_hash(due.question) != question:
                raise Declined(OFF_PATH)
        if self.memory.setdefault(f"step {step}", question.hex()) != question.hex():
            raise Declined("another question was answered under this step")
        encoded = self.memory.setdefault(f"question {question.hex()}", scales.hex())
        if encoded != scales.hex():
            raise Declined("the question was answered with other bounds")

    def witness_key(self, question: Question, scales: bytes) -> bytes:
        """The key of a question's witnesses, which sites know and the coordinator does not."""
        secret = self.memory.get(SECRET)
        if secret is None:
            raise Declined("this site does not know the sites' secret yet")
        facts = (self.roster.study, self.roster.digest, question.step, question_hash(question))
        return question_key(bytes.fromhex(secret), *facts, scales)

    def witness(
        self, question: Question, layout: Layout, values: Mapping[Entry, np.ndarray]
    ) -> np.ndarray:
        """Integers that witness these, which go into a total."""
        key = self.witness_key(question, scales_hash(layout))
        return to_limbs(tag(key, values, [self.index]))

    def witnessed(self, question: Question, answer: Contribution) -> Contribution:
        """An answer to `gather`, with its witness."""
        told = proof(self.witness_key(question, b"gather"), self.index, answer)
        return replace(answer, arrays={**answer.arrays, WITNESS: np.frombuffer(told, np.uint8)})

    def values(
        self, site: SiteContext, inner: Question, layout: Layout, protocol: str
    ) -> dict[Entry, np.ndarray]:
        """The answer to the inner question as integers, with their witness; the same in every
        attempt, or none."""
        values = hidden_values(site, inner, layout, protocol)
        if inner.witnessed:
            values[layout[-1]] = self.witness(inner, layout, values)
        self.stand_by(inner.step, values)
        return values

    def stand_by(self, step: int, values: Mapping[Entry, np.ndarray]) -> None:
        """Refuse to answer a step anew and differently: noise drawn twice could be averaged away.

        A simulated site draws the same again. A real one stores what it answered, or stays away.
        """
        found = [fingerprint(integers) for integers in values.values()]
        if self.memory.setdefault(f"answer {step}", found) != found:
            raise Declined("the answer to this step would not be the same as before")


def fingerprint(integers: np.ndarray) -> int:
    """64 bits that tell two draws of the same answer apart: nobody chooses how they differ, so that
    a weighted sum modulo 2^64 will do."""
    found = 0
    for start in range(0, integers.size, len(_WEIGHTS)):
        piece = integers[start : start + len(_WEIGHTS)].astype(np.int64, copy=False)
        found = (found * _FACTOR + int(piece @ _WEIGHTS[: piece.size])) % 2**64
    return found


def member_of(site: SiteContext) -> Member:
    if not isinstance(site.party, Member):
        raise Declined("this site has no keys for masked sums")
    return site.party


def terms_hash(layout: Layout, check: bytes) -> bytes:
    """What all sites of a sum must have been told alike, beside the question: how to encode, and
    the key of the checksums. One with a scale or a key of its own could be told from the rest."""
    return digest("cupola terms 1", scales_hash(layout), check)


@task("masked")
def masked(site: SiteContext, question: Question) -> Contribution:
    """The inner question's answer, masked; its seed goes to the compensator, under seal."""
    member, inner, options = member_of(site), inner_question(question), options_of(question)
    attempt, check = whole_in(options, "attempt"), hash_in(options, "check")
    roster, step, asked = member.roster, inner.step, question_hash(inner)
    layout = layout_of(inner, len(roster.sites))
    member.agree(options.get("roster"), step, asked, scales_hash(layout))
    if roster.compensator is None:
        raise Declined("the roster names no compensator")
    values = member.values(site, inner, layout, "masked")
    arrays, seed = Arrays(), new_seed()
    for entry, integers in values.items():
        stream = mask_key(seed, study=roster.study, step=step, attempt=attempt, array=entry.name)
        residue = checksum(check, entry.name, integers) + mask_residue(stream)
        add_mask(integers, stream)
        arrays[ANSWER + entry.name] = integers
        arrays[CHECK + entry.name] = to_bytes(residue % P)
    facts = (asked, layout_hash(tuple(values)), terms_hash(layout, check))
    statement = roster.statement(member.identity.name, step, attempt, *facts)
    envelope = seal(statement, seed, member.identity, roster.compensator)
    arrays["envelope"] = np.frombuffer(envelope, np.uint8)
    return Contribution(arrays)


masked.about = inner_question
