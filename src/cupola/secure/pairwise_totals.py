"""Differences of totals with pairwise masks: a site signs one set of survivors in a whole study.

A compensator sees every total, and so the parts that all of them make (`differences`). A site sees
those that it is asked to sign. So it signs less: for each array one set, but for sites that are
free to be told of. Then the argument of `pairwise_memory` holds for all totals of an array and not
for those of one question alone. A total takes a quorum of its cohort, of whom at most c = minimum
- 2 work with the coordinator: more than half of its honest sites signed it, and sign no other set.
So of each total the signers outnumber its other honest sites, who may have signed other totals: too
few to cancel all signers. Whatever combines totals has two honest sites in it at least.

Which survivors it signed last for totals of the same encoding a site tells at the beginning, so
that nobody is asked in vain who dropped out before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from cupola.federation import Declined
from cupola.secure.differences import ALL, EXPOSED, Sets, related
from cupola.secure.member import Member
from cupola.secure.pairwise_memory import told

Record = dict[str, list[str]]  # sites, as text -> the arrays they are behind in a total


def agree_to_total(
    member: Member, scales: bytes, names: Sequence[str], sites: Sequence[int], present: np.ndarray
) -> None:
    """Remember the sites behind a total, durably; Declined if another one of its arrays had others.
    names: of the arrays that `present` has a column for, or of all."""
    if member.roster.changes:
        return
    sent = dict(zip(names, present.T)) if present.shape[1] else {}
    by_sites: Record = {}
    for name in (*names, ALL):
        senders = np.array(sites)[sent.get(name, slice(None))]
        if len(senders) >= member.roster.minimum:
            by_sites.setdefault(_to_text(senders), []).append(name)
    before = _records(member)
    if by_sites not in before:
        new = _sets(member, by_sites)
        for one in (_sets(member, record) for record in before):
            for array in new.keys() & one.keys():
                differ = (new[array] ^ one[array]) - member.free
                if differ and (array != ALL or related(one, new)):
                    raise _exposed(member, differ)
    entries: dict[str, Any] = {}
    if by_sites not in before:
        entries[f"total {len(before)}"] = by_sites
    last, these = _last(member, scales), _to_text(np.array(sites))
    if last[-1:] != [these]:
        entries[f"scales {scales.hex()}, {len(last)}"] = these
    member.memory.update(entries)


def told_before(member: Member, question: bytes, scales: bytes) -> list[int]:
    """The survivors that this site will agree to, as far as it knows now; none: no matter who."""
    known = told(member, question)
    if not known and not member.roster.changes:
        known = _from_text(["", *_last(member, scales)][-1])
    gone = member.gone()
    if gone and not known:
        known = list(range(len(member.roster.sites)))
    return [site for site in known if member.roster.sites[site].name not in gone]


def refuse_gone(member: Member, sites: Sequence[int]) -> None:
    """Declined for a cohort with sites that the others go on without."""
    there = member.gone() & {member.roster.sites[site].name for site in sites}
    if there:
        raise _exposed(member, there)


def _exposed(member: Member, names: frozenset[str]) -> Declined:
    numbers = [n for n, site in enumerate(member.roster.sites) if site.name in names]
    return Declined(f"{EXPOSED}: {numbers[:30]}")


def _records(member: Member) -> list[Record]:
    found: list[Record] = []
    while (held := member.memory.get(f"total {len(found)}")) is not None:
        found.append(held)
    return found


def _sets(member: Member, record: Record) -> Sets:
    parties = member.roster.sites
    found: dict[str, frozenset[str]] = {}
    for text, arrays in record.items():
        found |= dict.fromkeys(arrays, frozenset(parties[i].name for i in _from_text(text)))
    return found


def _last(member: Member, scales: bytes) -> list[str]:
    found: list[str] = []
    while (held := member.memory.get(f"scales {scales.hex()}, {len(found)}")) is not None:
        found.append(held)
    return found


def _to_text(sites: np.ndarray) -> str:
    """A bit a site; one object for all sites of a process, which may be many."""
    bits = np.zeros(int(sites.max()) + 1, bool)
    bits[sites] = True
    return sys.intern(np.packbits(bits).tobytes().hex())


def _from_text(text: str) -> list[int]:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))
    return [int(site) for site in np.flatnonzero(bits)]
