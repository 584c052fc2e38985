"""Going on without a site that is lost: an agreement of all others, or of that site itself.

The totals before and after tell its answer by their difference, so that no coordinator decides that
a site is lost. Every site that stays signs that the study may go on without it, after it has asked
there by other means; or the site signs so itself. Whoever keeps the rule about differences (the
compensator, or every site) holds these files, and the site stays out from then on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from cupola.base.files import write_atomically
from cupola.errors import FederationError
from cupola.secure.canonical import is_whole
from cupola.secure.identity import Identity
from cupola.secure.roster import Roster, agreement, is_agreed

FOLDER = "go-on"
_MOST = 1 << 16  # bytes of an agreement
Agreement = tuple[frozenset[str], str]  # the sites that are lost together, and who signed that


def go_on(identity: Identity, roster: Roster, lost: Iterable[str]) -> str:
    """A site's word that the study may go on without others, as JSON to hand out."""
    names = [site.name for site in roster.sites]
    unknown = [name for name in lost if name not in names]
    if unknown:
        raise FederationError(f"the study's roster has no site '{unknown[0]}'")
    numbers = sorted({names.index(name) for name in lost})
    facts = {"cupola": "go-on", "study": roster.study, "without": numbers, "site": identity.name}
    signature = agreement(identity, roster.body, _what(numbers))
    text = json.dumps({**facts, "signature": signature.hex()}, indent=1)
    signed(text, roster)
    return text


def signed(text: str | bytes, roster: Roster) -> Agreement:
    """What an agreement says; FederationError unless a site of this roster signed it for it."""
    try:
        if len(text) > _MOST:
            raise ValueError("size")
        facts = json.loads(text)
        numbers, signature = facts["without"], bytes.fromhex(facts["signature"])
        if not numbers or not all(is_whole(number) for number in numbers):
            raise ValueError("sites")
        lost = frozenset(roster.sites[number].name for number in numbers)
        (signer,) = (site for site in roster.sites if site.name == facts["site"])
        if facts["cupola"] != "go-on" or numbers != sorted(set(numbers)):
            raise ValueError("form")
        if not is_agreed(signer, roster.body, _what(numbers), signature):
            raise ValueError("signature")
        return lost, signer.name
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        raise FederationError(
            "this is not an agreement by a site of this study to go on without others"
        ) from None


def keep(place: Path, text: str | bytes, roster: Roster) -> Agreement:
    """Believe an agreement from now on; place: the study's folder of the party that believes."""
    found = signed(text, roster)
    (place / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    body = text.encode() if isinstance(text, str) else text
    write_atomically(place / FOLDER / f"{sha256(body).hexdigest()[:32]}.json", body)
    return found


def kept(place: Path, roster: Roster) -> list[Agreement]:
    """The agreements in a study's folder, but for damaged ones: without them the study waits."""
    found = []
    for path in sorted((place / FOLDER).glob("*.json")):
        try:
            found.append(signed(path.read_bytes(), roster))
        except (OSError, FederationError):
            continue
    return found


def gone(agreements: Iterable[Agreement], roster: Roster) -> frozenset[str]:
    """The sites that a study goes on without: each signed so itself, or all that stay did, who
    must be the minimum at least. Several that are lost at once are named together."""
    signers: dict[frozenset[str], set[str]] = {}
    for lost, signer in agreements:
        signers.setdefault(lost, set()).add(signer)
    names = {site.name for site in roster.sites}
    found = {signer for lost, by in signers.items() for signer in by if lost == {signer}}
    while True:
        more = {
            site
            for lost, by in signers.items()
            if len(stay := names - lost - found) >= roster.minimum and stay <= by
            for site in lost
        }
        if more <= found:
            return frozenset(found)
        found |= more


def awaited(
    agreements: Iterable[Agreement], roster: Roster, lost: Iterable[str]
) -> tuple[str, ...]:
    """Who has yet to sign before the study goes on without these sites."""
    own, these = list(agreements), frozenset(lost)
    out = gone(own, roster)
    there = {signer for named, signer in own if named == these}
    stay = [site.name for site in roster.sites if site.name not in these | out | there]
    return () if these <= out else tuple(stay)


def _what(numbers: Iterable[int]) -> str:
    return f"without {' '.join(map(str, numbers))}"
