"""People in more than one cohort, found by hashes of their ids under a salt that cohorts share."""

from __future__ import annotations

import hashlib

import numpy as np

from cupola.association.files import CohortError
from cupola.association.site import FINGERPRINTS, Site, guarded
from cupola.federation.message import Contribution, Question
from cupola.federation.site import SiteContext, task

HASH = 8  # bytes of a fingerprint


@task(FINGERPRINTS)
@guarded
def fingerprints(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Hashes of this cohort's people, by their ids, under the cohorts' own salt.

    They are in order of size, among as many random numbers as hide how many people there are: the
    same numbers whenever it is asked, since what two answers have in common would be the people.
    """
    if own.salt is None:
        raise CohortError(
            "no-salt", f"cohort '{own.files.name}'", "fingerprints need a salt that cohorts share"
        )
    cohort, most = own.cohort, question.expects["hashes"].shape[0]
    own.pin("fingerprints", most)  # many such limits would tell how many there are
    who = np.flatnonzero(cohort.loaded)
    if len(who) > most:
        raise CohortError("people-too-many", f"cohort '{own.files.name}'", "too many to compare")
    hashes = [_hash(own.salt, cohort.person[i].encode()) for i in who]
    if site.secret_seed is None:  # whoever could tell the random numbers could count people
        noise = hashlib.shake_256(own.secret()).digest(most * HASH)
        found = np.frombuffer(noise, np.uint8).reshape(most, HASH).copy()
    else:
        draw = site.generator("gwas fingerprints", 0)
        found = draw.integers(0, 256, (most, HASH), np.uint8)
    found[: len(hashes)] = np.frombuffer(b"".join(hashes), np.uint8).reshape(-1, HASH)
    return Contribution({"hashes": np.sort(found.view(">u8"), axis=0).view(np.uint8)})


def _hash(salt: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(data, key=salt[:64], digest_size=HASH).digest()
