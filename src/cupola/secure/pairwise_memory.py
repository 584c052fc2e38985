"""What a site remembers for good about survivors it signed, so that differences of totals hide all.

*Totals of one question.* Two totals of the same answers tell their difference. With a compensator
one party remembers; here every site does. Let S be the survivors of a total and m, c, quorum as in
`graph`: more than half of the honest sites of its cohort signed S, and sign no other S' for that
question. The totals that a coordinator can collect of one question are then equations in each of
which the honest signers, who signed no other, outnumber the other honest sites. Such equations
never resolve to one site's answer, however attempts and cohorts are arranged (strict diagonal
dominance).

*Totals of a whole study.* A compensator sees every total, and so the parts that all of them make
(`differences`). A site sees those that it is asked to sign. So it signs less: for each array one
set, but for sites that are free to be told of. Then the same argument holds for all totals of an
array and not for those of one question alone. A total takes a quorum of its cohort, of whom at most
c = minimum - 2 work with the coordinator: more than half of its honest sites signed it, and sign no
other set. So of each total the signers outnumber its other honest sites, who may have signed other
totals: too few to cancel all signers. Whatever combines totals has two honest sites in it at least.

Which survivors it signed last for totals of the same encoding a site tells at the beginning, so
that nobody is asked in vain who dropped out before.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from cupola.federation.message import Declined
from cupola.secure.differences import ALL, EXPOSED, Sets, related
from cupola.secure.member import Member

Survivors = dict[int, bytes]  # of a question: site -> which arrays it sent
Behind = dict[str, list[str]]  # of a total: sites, as text -> the arrays they are behind

OTHERS = "the question was answered for other survivors"


# Totals of one question


def agree_to_cohort(member: Member, question: bytes, sites: Sequence[int]) -> None:
    """Refuse to deal shares for a total that this site could not agree to afterwards."""
    for record in _answered(member, question):
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
    records = _answered(member, question)
    alike = set(new)
    for record in records:
        differ = {site for site in {*new, *record} if new.get(site) != record.get(site)}
        _consented(member, differ)
        alike -= differ
    if len(alike) < member.roster.minimum:
        raise Declined(OTHERS)
    if new not in records:
        text = f"{_to_text(sites)} {b''.join(new.values()).hex()}"
        member.memory.setdefault(f"{_of_question(question)}{len(records)}", sys.intern(text))
    rows = np.array([site in alike for site in new])
    enough = present[rows].sum(axis=0) >= member.roster.minimum
    return (True, *(bool(yes) for yes in enough))


def _consented(member: Member, differ: Iterable[int]) -> None:
    if not {member.roster.sites[site].name for site in differ} <= member.free:
        raise Declined(OTHERS)


def _answered(member: Member, question: bytes) -> list[Survivors]:
    """The survivors that this site signed for a question."""
    found = []
    for text in member.memory.listed(_of_question(question)):
        sites, sent = text.split(" ")
        numbers, rows = _from_text(sites), bytes.fromhex(sent)
        width = len(rows) // len(numbers)
        found.append({s: rows[i * width : (i + 1) * width] for i, s in enumerate(numbers)})
    return found


def _of_question(question: bytes) -> str:
    return f"survivors of {question.hex()}, "


# Totals of a whole study


def agree_to_total(
    member: Member, scales: bytes, names: Sequence[str], sites: Sequence[int], present: np.ndarray
) -> None:
    """Remember the sites behind a total, durably; Declined if another one of its arrays had others.
    names: of the arrays that `present` has a column for, or of all."""
    if member.roster.changes:
        return
    sent = dict(zip(names, present.T)) if present.shape[1] else {}
    by_sites: Behind = {}
    for name in (*names, ALL):
        senders = np.array(sites)[sent.get(name, slice(None))]
        if len(senders) >= member.roster.minimum:
            by_sites.setdefault(_to_text(senders), []).append(name)
    before, entries = member.memory.listed("total "), dict[str, Any]()
    if by_sites not in before:
        _keep_crowds(member, before, by_sites)
        entries[f"total {len(before)}"] = by_sites
    last, these = member.memory.listed(_of_scales(scales)), _to_text(sites)
    if last[-1:] != [these]:
        entries[f"{_of_scales(scales)}{len(last)}"] = these
    member.memory.update(entries)


def _keep_crowds(member: Member, before: list[Behind], new: Behind) -> None:
    """Declined if an array of a total had others behind it before, and they are not free."""
    sets = _sets(member, new)
    for one in (_sets(member, record) for record in before):
        for array in sets.keys() & one.keys():
            differ = (sets[array] ^ one[array]) - member.free
            if differ and (array != ALL or related(one, sets)):
                raise _exposed(member, differ)


def told_before(member: Member, question: bytes, scales: bytes) -> list[int]:
    """The survivors that this site will agree to, as far as it knows now; none: no matter who."""
    records = _answered(member, question)
    known = sorted(records[-1]) if records else []
    if not known and not member.roster.changes:
        known = _from_text(["", *member.memory.listed(_of_scales(scales))][-1])
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
    return Declined(f"{EXPOSED}: {member.roster.numbers(names)[:30]}")


def _sets(member: Member, record: Behind) -> Sets:
    parties = member.roster.sites
    found: dict[str, frozenset[str]] = {}
    for text, arrays in record.items():
        found |= dict.fromkeys(arrays, frozenset(parties[i].name for i in _from_text(text)))
    return found


def _of_scales(scales: bytes) -> str:
    return f"scales {scales.hex()}, "


def _to_text(sites: Sequence[int] | np.ndarray) -> str:
    """A bit a site; one object for all sites of a process, which may be many."""
    bits = np.zeros(max(sites) + 1, bool)
    bits[list(sites)] = True
    return sys.intern(np.packbits(bits).tobytes().hex())


def _from_text(text: str) -> list[int]:
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8))
    return [int(site) for site in np.flatnonzero(bits)]
