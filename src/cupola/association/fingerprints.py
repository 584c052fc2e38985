"""People in more than one cohort, found by hashes of their ids under a salt that cohorts share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from cupola.association.files import CohortError
from cupola.association.site import FINGERPRINTS, HASH, Site, guarded
from cupola.association.tasks import counted
from cupola.errors import DataError
from cupola.federation.message import Contribution, Question
from cupola.federation.site import SiteContext, task

NO_SALT = (
    "people whom this site shares with other cohorts are not found: its settings have no salt "
    "(salt = '...', the same at all cohorts, unknown to the coordinator)"
)
_MARK = b"which salt"


@task(FINGERPRINTS)
@guarded
def fingerprints(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Hashes of this cohort's people, by their ids, under the cohorts' own salt, for this study:
    what the hashes of two studies have in common would be the people without the random numbers.

    They are in order of size, among as many random numbers as hide how many people there are: the
    same numbers whenever it is asked, since what two answers have in common would be the people.
    'salt': 0 without one, when all numbers are random; else a byte of its own hash, so that cohorts
    with different salts are not taken to share nobody. One byte helps nobody to guess a salt.
    """
    cohort, most = own.cohort, question.expects["hashes"].shape[0]
    own.pin("fingerprints", most)  # many such limits would tell how many there are
    who = np.flatnonzero(counted(cohort, own.limits.least_cell))  # whom `most` is the number of
    if len(who) > most:
        raise CohortError("people-too-many", f"cohort '{own.files.name}'", "too many to compare")
    if own.salt is None:
        own.complain(NO_SALT)
    ids = [cohort.person[i].encode() for i in who]
    hashes = [] if own.salt is None else [_hash(own.salt, one, own.of_study) for one in ids]
    if site.secret_seed is None:  # whoever could tell the random numbers could count people
        noise = hashlib.shake_256(own.secret()).digest(most * HASH)
        found = np.frombuffer(noise, np.uint8).reshape(most, HASH).copy()
    else:
        draw = site.generator("gwas fingerprints", 0)
        found = draw.integers(0, 256, (most, HASH), np.uint8)
    found[: len(hashes)] = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH)
    salt = 0 if own.salt is None else 1 + _hash(own.salt, _MARK)[0] % 255
    whole = np.sort(found.view(">u8"), axis=0).view(np.uint8)
    return Contribution({"hashes": whole, "salt": np.array([salt], np.uint8)})


def _hash(salt: bytes, data: bytes, study: str = "") -> bytes:
    about = hashlib.sha256(study.encode()).digest()[:16] if study else b""
    return hashlib.blake2b(data, key=salt[:64], person=about, digest_size=HASH).digest()


# In the program


def shared(answers: Mapping[int, Contribution]) -> list[list[int]]:
    """[cohort, cohort, people in both], of those who share some and have one salt."""
    sets = {s: set(map(bytes, a.arrays["hashes"].astype(np.uint8))) for s, a in answers.items()}
    salts = {s: int(a.arrays["salt"][0]) for s, a in answers.items()}
    return [
        [a, b, len(sets[a] & sets[b])]
        for a in sorted(sets)
        for b in sorted(sets)
        if a < b and salts[a] == salts[b] > 0 and sets[a] & sets[b]
    ]


def not_compared(answers: Mapping[int, Contribution], names: Sequence[str]) -> list[str]:
    """A warning where some cohorts' people were not compared with the others'."""
    salts = {s: int(a.arrays["salt"][0]) for s, a in answers.items()}
    without = [names[s] for s in sorted(salts) if not salts[s]]
    found = []
    if without:
        found.append(
            f"shared people were not looked for in {_listed(without)}: no salt in the site's "
            "settings (salt; the same at all cohorts, unknown to the coordinator)"
        )
    if len({salt for salt in salts.values() if salt}) > 1:
        found.append(
            "cohorts have different salts: people that these share are not found; agree on one "
            "(salt in the site's settings)"
        )
    return found


def require_nobody(pairs: Sequence[Sequence[int]], names: Sequence[str]) -> None:
    """DataError if cohorts share people, with counts per pair."""
    if pairs:
        told = "; ".join(f"'{names[a]}' and '{names[b]}' {n:,}" for a, b, n in pairs)
        raise DataError(
            f"cohorts share people (shared = 'stop'): {told}. Leave them out of all cohorts but "
            "one (keep), or go on with shared = 'warn'"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
