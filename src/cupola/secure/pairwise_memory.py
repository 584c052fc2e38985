"""For which survivors a site has helped to answer a question, for good.

Two totals of the same answers tell their difference. With a compensator one party remembers; here
every site does. Let S be the survivors of a total and m, c, quorum as in `graph`: more than half
of the honest sites of its cohort signed S, and sign no other S' for that question. The totals that
a coordinator can collect of one question are then equations in each of which the honest signers,
who signed no other, outnumber the other honest sites. Such equations never resolve to one site's
answer, however attempts and cohorts are arranged (strict diagonal dominance).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import numpy as np

from cupola.federation import Declined
from cupola.secure.member import Member

Record = dict[int, bytes]  # site -> which arrays it sent

OTHERS = "the question was answered for other survivors"


def told(member: Member, question: bytes) -> list[int]:
    """The survivors this site signed last for a question; none if it never did."""
    records = _records(member, question)
    return sorted(records[-1]) if records else []


def agree_to_cohort(member: Member, question: bytes, sites: Sequence[int]) -> None:
    """Refuse to deal shares for a total that this site could not agree to afterwards."""
    for record in _records(member, question):
        _consented(member, set(record) ^ set(sites))


def agree_to_survivors(
    member: Member, question: bytes, sites: Sequence[int], present: np.ndarray
) -> tuple[bool, ...]:
    """Remember the survivors of a question, durably, and which arrays they sent; which of the own
    masks' seeds may be told: of all sites' weights, and of each array (see `groups`).

    Other survivors than before only if each site that came, went or sent other arrays agreed to
    it ('leaves'); an array then needs the minimum of sites that are in all of its totals alike.
    """
    new = {site: np.packbits(row).tobytes() for site, row in zip(sites, present, strict=True)}
    records = _records(member, question)
    alike = set(new)
    for record in records:
        differ = {site for site in {*new, *record} if new.get(site) != record.get(site)}
        _consented(member, differ)
        alike -= differ
    if len(alike) < member.roster.minimum:
        raise Declined(OTHERS)
    if new not in records:
        member.memory.setdefault(_key(question, len(records)), _to_text(new))
    rows = np.array([site in alike for site in new])
    enough = present[rows].sum(axis=0) >= member.roster.minimum
    return (True, *(bool(yes) for yes in enough))


def _consented(member: Member, differ: Iterable[int]) -> None:
    names = {member.roster.sites[site].name for site in differ}
    if not names <= member.free:
        raise Declined(OTHERS)


def _records(member: Member, question: bytes) -> list[Record]:
    records: list[Record] = []
    while (text := member.memory.get(_key(question, len(records)))) is not None:
        records.append(_from_text(text))
    return records


def _key(question: bytes, number: int) -> str:
    return f"survivors of {question.hex()}, {number}"


def _to_text(record: Record) -> str:
    """Short, and one object for all sites of a process: there may be many steps and sites."""
    bits = np.zeros(max(record) + 1, bool)
    bits[list(record)] = True
    return sys.intern(f"{np.packbits(bits).tobytes().hex()} {b''.join(record.values()).hex()}")


def _from_text(text: str) -> Record:
    bits, rows = (bytes.fromhex(part) for part in text.split(" "))
    sites = np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8))).tolist()
    width = len(rows) // len(sites)
    return {site: rows[i * width : (i + 1) * width] for i, site in enumerate(sites)}
