"""What sites sign, seal and derive for pairwise masks; the same code at coordinator and sites.

Everything hangs on the *cohort*: the signed one-time keys of all sites of an attempt. Its digest
goes into every later signature, seal and mask, so that nothing made for one cohort (that is, one
study, roster, step, attempt, question, layout and set of keys) is good for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cupola.errors import FederationError
from cupola.federation.message import Declined, Question
from cupola.secure.canonical import Value, digest, pack
from cupola.secure.encoding import Entry
from cupola.secure.envelope import Statement
from cupola.secure.graph import Graph, graph
from cupola.secure.identity import Identity, Party
from cupola.secure.mask_stream import derive
from cupola.secure.pairwise_masks import Masks, Table
from cupola.secure.roster import Roster
from cupola.secure.shamir import SHARE
from cupola.secure.wrapped_question import BEYOND, WEIGHT

KEY, SIGNATURE, TAG = 32, 64, 16
KEYS = 2 * KEY + SIGNATURE  # a key to mask with, a key to be written to, the site's signature
_NONCE = bytes(12)  # every key encrypts one message


@dataclass(frozen=True)
class Cohort:
    """The sites of an attempt (numbers in the roster, increasing) and their signed keys.

    dealt: in what follows, those of the cohort who dealt shares. edges: a bit for each ordered pair
    of the cohort, whether the first drew the second; nothing where everybody masks with everybody.
    """

    roster: Roster
    statement: Statement  # of any site: its name plays no part
    sites: tuple[int, ...]
    keys: tuple[bytes, ...]

    @cached_property
    def digest(self) -> bytes:
        facts = replace(self.statement, site="").encode()
        return digest("cupola cohort 1", facts, self.sites, self.keys)

    @cached_property
    def graph(self) -> Graph:
        return graph(len(self.sites), self.roster.minimum)

    @cached_property
    def place(self) -> dict[int, int]:
        """Where a site stands in the cohort."""
        return {site: place for place, site in enumerate(self.sites)}

    def name(self, site: int) -> str:
        return self.roster.sites[site].name

    def mask_key(self, site: int) -> bytes:
        return self.keys[self.place[site]][:KEY]

    def seal_key(self, site: int) -> bytes:
        return self.keys[self.place[site]][KEY : 2 * KEY]

    # What was signed

    def check(self, sites: Sequence[int]) -> None:
        """Refuse keys that these sites did not sign for this attempt."""
        for site in sites:
            if not keys_are_signed(self.roster, self.statement, site, self.keys[self.place[site]]):
                raise Declined(f"keys that '{self.name(site)}' did not sign")

    def stage(self, dealt: Sequence[int], edges: bytes, check: bytes) -> bytes:
        """32 bytes that stand for the cohort, who dealt shares, who masks with whom, and the
        checksums' key: a site with a key of its own would give away a sum over its numbers."""
        return digest("cupola stage 1", self.digest, list(dealt), edges, check)

    def is_answer(self, site: int, stage: bytes, present: np.ndarray, signature: bytes) -> bool:
        """Whether a site signed that it answered at this stage, with these arrays."""
        party = self.roster.sites[site]
        facts = (replace(self.statement, site=party.name).encode(), stage, present.tobytes())
        return is_signed(party, signature, "pairwise masked", *facts)

    # Secrets of two sites

    def seal(self, own: X25519PrivateKey, sender: int, to: int, share: bytes) -> bytes:
        """A share, for the eyes of the site `to`."""
        key, facts = self._shared(own, sender, to, self.seal_key(to))
        return ChaCha20Poly1305(key).encrypt(_NONCE, share, facts)

    def unseal(self, own: X25519PrivateKey, sender: int, to: int, sealed: bytes) -> bytes | None:
        """The share that `sender` sealed for `to` in this cohort; None if it did not."""
        try:
            key, facts = self._shared(own, sender, to, self.seal_key(sender))
            return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, facts)
        except (InvalidTag, ValueError):
            return None

    def _shared(
        self, own: X25519PrivateKey, sender: int, to: int, key: bytes
    ) -> tuple[bytes, bytes]:
        facts = pack("cupola share 1", self.digest, sender, to)
        return derive(own.exchange(_point(key)), facts), facts

    def pair_masks(self, own: X25519PrivateKey, site: int, others: Sequence[int]) -> Masks:
        """The masks that a site shares with others, as it applies them: the other takes off what
        this one adds. own: its mask key. ValueError for a key that leads to no secret."""
        masks = []
        for other in others:
            secret = own.exchange(_point(self.mask_key(other)))
            seed = derive(secret, "cupola pair 1", self.digest, sorted((site, other)))
            masks.append((seed, 1 if site < other else -1))
        return masks

    # Who masks with whom

    def edges(self, picks: Mapping[int, Sequence[int]]) -> bytes:
        """Whom each site drew, packed."""
        if self.graph.complete:
            return b""
        size = len(self.sites)
        bits = np.zeros((size, size), bool)
        for site, drawn in picks.items():
            bits[self.place[site], [self.place[other] for other in drawn]] = True
        return np.packbits(bits).tobytes()

    def drawn_by(self, site: int, edges: bytes) -> list[int]:
        """Whom a site drew."""
        if self.graph.complete:
            return [other for other in self.sites if other != site]
        return [self.sites[p] for p in np.flatnonzero(self._bits(edges)[self.place[site]])]

    def neighbours(self, site: int, dealt: Sequence[int], edges: bytes) -> list[int]:
        """Those whom a site masks with: they dealt shares, and one of the two drew the other."""
        others = [other for other in dealt if other != site]
        if self.graph.complete:
            return others
        bits, place = self._bits(edges), self.place[site]
        linked = bits[place] | bits[:, place]
        return [other for other in others if linked[self.place[other]]]

    def _bits(self, edges: bytes) -> np.ndarray:
        size = len(self.sites)
        if len(edges) != -(-size * size // 8):
            raise FederationError("edges of another cohort")
        bits = np.unpackbits(np.frombuffer(edges, np.uint8), count=size * size)
        return bits.reshape(size, size).astype(bool)


def sign(identity: Identity, what: str, *facts: Value) -> bytes:
    return identity.sign.sign(pack(f"cupola {what} 1", *facts))


def is_signed(party: Party, signature: bytes, what: str, *facts: Value) -> bool:
    return party.signed(pack(f"cupola {what} 1", *facts), signature)


def sign_keys(statement: Statement, mask: bytes, seal: bytes, identity: Identity) -> bytes:
    """A site's two one-time public keys for this statement, signed: KEYS bytes."""
    return mask + seal + sign(identity, "pairwise keys", statement.encode(), mask, seal)


def keys_are_signed(roster: Roster, statement: Statement, site: int, keys: bytes) -> bool:
    party = roster.sites[site]
    facts = replace(statement, site=party.name).encode()
    mask, seal, signature = keys[:KEY], keys[KEY : 2 * KEY], keys[2 * KEY :]
    return is_signed(party, signature, "pairwise keys", facts, mask, seal)


def usable(keys: bytes) -> bool:
    """Whether two of these keys lead to secrets (a few points of the curve never do)."""
    try:
        for start in (0, KEY):
            X25519PrivateKey.generate().exchange(_point(keys[start : start + KEY]))
    except ValueError:
        return False
    return True


def survivors_digest(stage: bytes, survivors: Sequence[int], present: np.ndarray) -> bytes:
    """The sites to be added up, at which stage, and the arrays each of them sent."""
    return digest("cupola survivors 1", stage, list(survivors), present.tobytes())


def sealed_size(count: int) -> int:
    """Bytes of a sealed share of the mask key and `count` seeds."""
    return (1 + count) * SHARE + TAG


def _point(key: bytes) -> X25519PublicKey:
    return X25519PublicKey.from_public_bytes(key)


# A site's own mask


def groups(inner: Question) -> int:
    """Seeds of a site's own mask: one, or where sites may leave arrays out one more per array, so
    that an array which too few sites sent stays masked."""
    return 1 + len(inner.expects) if inner.partial else 1


def group_of(entry: Entry, inner: Question) -> int:
    """The seed over an array, where each has its own."""
    name = entry.name.removeprefix(f"{WEIGHT}/")
    return 0 if name in (WEIGHT, BEYOND) else 1 + sorted(inner.expects).index(name)


def mask_own(
    table: Table, statement: Statement, inner: Question, seeds: Mapping[int, bytes], sign: int
) -> None:
    """Add (sign 1) or take off (-1) a site's own mask, as far as its seeds are known."""
    if not inner.partial:
        table.mask(statement, [(seeds[0], sign)])
        return
    for entry in table.arrays:
        if group_of(entry, inner) in seeds:
            table.mask_some(statement, [entry], [(seeds[group_of(entry, inner)], sign)])
