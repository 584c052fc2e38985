"""A site among the parties of masked sums: its keys, the roster it agreed to, what it answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cupola.federation import Contribution, Declined, Question, SiteContext, task
from cupola.secure.checksum import checksum, to_bytes
from cupola.secure.encoding import layout_hash
from cupola.secure.envelope import Statement, seal
from cupola.secure.hidden import (
    hidden_values,
    inner_question,
    layout_of,
    question_hash,
)
from cupola.secure.identity import Identity
from cupola.secure.memory import Memory
from cupola.secure.roster import Roster
from cupola.secure.streams import P, add_mask, mask_key, mask_residue, new_seed

ANSWER, CHECK = "masked/", "check/"  # the two arrays that stand for one


@dataclass
class Member:
    """One site's side. memory: steps and the questions it answered under them, durable."""

    identity: Identity
    roster: Roster
    index: int
    memory: Memory = field(default_factory=Memory)

    def agree(self, roster: Any, step: int, question: bytes) -> None:
        """Refuse a study whose roster is not the pinned one, and a second question in a step."""
        if roster != self.roster.digest.hex():
            raise Declined("the roster is not the one this site agreed to")
        asked = question.hex()
        if self.memory.setdefault(str(step), asked) != asked:
            raise Declined("another question was answered under this step")


def member_of(site: SiteContext) -> Member:
    if not isinstance(site.party, Member):
        raise Declined("this site has no keys for masked sums")
    return site.party


@task("masked")
def masked(site: SiteContext, question: Question) -> Contribution:
    """The inner question's answer, masked; its seed goes to the compensator, under seal."""
    member, inner = member_of(site), inner_question(question)
    options = question.options["hidden"]
    asked = question_hash(inner)
    member.agree(options["roster"], inner.step, asked)
    compensator = member.roster.compensator
    if compensator is None:
        raise Declined("the roster names no compensator")
    attempt, key = int(options["attempt"]), bytes.fromhex(options["check"])
    values = hidden_values(site, inner, layout_of(inner, int(options["sites"])))
    seed = new_seed()
    study, step = member.roster.study, inner.step
    arrays = {}
    for entry, integers in values.items():
        stream = mask_key(seed, study=study, step=step, attempt=attempt, array=entry.name)
        residue = checksum(key, entry.name, integers) + mask_residue(stream)
        add_mask(integers, stream)
        arrays[ANSWER + entry.name] = integers
        arrays[CHECK + entry.name] = to_bytes(residue % P)
    layout = layout_hash(tuple(values))
    statement = Statement(
        study, member.roster.digest, step, attempt, asked, layout, member.identity.name
    )
    envelope = seal(statement, seed, member.identity, compensator)
    arrays["envelope"] = np.frombuffer(envelope, np.uint8)
    return Contribution(arrays)


masked.about = inner_question
