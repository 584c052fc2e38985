"""Witnessed totals: sites are told the total, and can tell whether the coordinator made it up.

All sites of a roster share a secret that the coordinator does not know: the first site draws it and
seals it for each of the others. For every question a key k is derived from it. Beside its integers
x_i, site i sends

    t_i = checksum(k, x_i) + pad(k, i)   modulo P = 2^127 - 1

as four more integers of its answer. Checksums are linear (see `checksum`), so that the total T of
the sites S and the total t of what they sent beside it fit together:

    t = checksum(k, T) + sum over S of pad(k, i).

The coordinator sees t and T, or with plain sums every t_i and x_i. The pads are uniform and serve
once: what it sees is independent of the coefficients of the checksum. For a total T' that is not
that of the sites it names it has to guess: its chance is below 2^-125 each time it tries. A site
believes the total of all that the program asked, and of no others: that of some would be authentic.

It may scale nothing (pads), leave nobody out (pads), and use no total twice (a key per question).
The adversary is a coordinator without an accomplice among the sites: one of them knows the secret.
Such a one could also send whatever leads the study astray as its own data. The compensator does not
know the secret, and sees nothing.

An answer to `gather` is witnessed by HMAC-SHA256 under the same key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping

import numpy as np

from cupola.federation.message import WITNESS, Contribution, encode_contribution
from cupola.secure.checksum import checksum
from cupola.secure.encoding import Entry
from cupola.secure.mask_stream import P, derive


def question_key(
    secret: bytes, study: str, roster: bytes, step: int, asked: bytes, scales: bytes
) -> bytes:
    """The key of one question's witnesses. asked, scales: hashes of the question and its layout."""
    return derive(secret, "cupola witness 1", study, roster, step, asked, scales)


def pad(key: bytes, site: int) -> int:
    """Uniform modulo P up to 2^-257."""
    return int.from_bytes(derive(key, "cupola witness pad 1", site, length=48), "little") % P


def tag(key: bytes, values: Mapping[Entry, np.ndarray], sites: Iterable[int]) -> int:
    """What integers of these sites, added up, are witnessed by."""
    own = (checksum(key, e.name, v) for e, v in values.items() if e.name != WITNESS)
    return (sum(own) + sum(pad(key, site) for site in sites)) % P


def to_limbs(residue: int) -> np.ndarray:
    """Four numbers of 32 bits: the limbs of many residues add up without a carry."""
    return np.array([residue >> 32 * i & 0xFFFFFFFF for i in range(4)], np.int64)


def from_limbs(limbs: np.ndarray) -> int:
    return sum(int(limb) << 32 * i for i, limb in enumerate(limbs.tolist())) % P


def proof(key: bytes, site: int, answer: Contribution) -> bytes:
    """Of an answer to `gather`."""
    own = derive(key, "cupola witness answer 1", site)
    return hmac.digest(own, encode_contribution(answer), hashlib.sha256)
