"""A site's seed on its way to the compensator: sealed so that nobody else can read it, and signed
for one answer so that it counts for nothing else. The coordinator carries it.

An envelope is 144 bytes: a fresh X25519 public key (32), the seed under ChaCha20-Poly1305 with the
statement as associated data (48), and the site's Ed25519 signature over all of it (64).
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from cupola.errors import FederationError
from cupola.secure.canonical import pack
from cupola.secure.identity import Identity, Party
from cupola.secure.mask_stream import SEED, derive

_KEY, _SEALED, _SIGNATURE = 32, SEED + 16, 64
ENVELOPE = _KEY + _SEALED + _SIGNATURE
_NONCE = bytes(12)  # every key encrypts one message


class EnvelopeError(FederationError):
    """An envelope that is not what it should be; why is nobody's business."""


@dataclass(frozen=True)
class Statement:
    """What one answer of one site is for: all that its signature and its seed are good for.

    roster, question and layout are hashes of 32 bytes. terms: of what else all sites must have been
    told alike (see `member.terms_hash`).
    """

    study: str
    roster: bytes
    step: int
    attempt: int
    question: bytes
    layout: bytes
    site: str
    terms: bytes = b""

    def encode(self) -> bytes:
        hashes = (self.roster, self.question, self.layout, self.terms)
        return pack("cupola statement 1", self.study, self.step, self.attempt, *hashes, self.site)


def seal(statement: Statement, seed: bytes, identity: Identity, compensator: Party) -> bytes:
    """The seed, for the compensator's eyes, signed by the site. 144 bytes."""
    fresh = X25519PrivateKey.generate()
    public = fresh.public_key().public_bytes_raw()
    try:
        shared = fresh.exchange(X25519PublicKey.from_public_bytes(compensator.seal))
    except ValueError:
        raise EnvelopeError("the compensator's key keeps no secrets") from None
    key = _key(shared, public, compensator.seal)
    sealed = ChaCha20Poly1305(key).encrypt(_NONCE, seed, statement.encode())
    return public + sealed + identity.sign.sign(_signed(statement, public, sealed))


def unseal(statement: Statement, envelope: bytes, signer: Party, identity: Identity) -> bytes:
    """The seed in an envelope that `signer` made for exactly this statement, or EnvelopeError."""
    if not isinstance(envelope, bytes) or len(envelope) != ENVELOPE:
        raise EnvelopeError("not an envelope")
    public, rest = envelope[:_KEY], envelope[_KEY:]
    sealed, signature = rest[:_SEALED], rest[_SEALED:]
    try:
        if not signer.signed(_signed(statement, public, sealed), signature):
            raise ValueError("signature")
        shared = identity.seal.exchange(X25519PublicKey.from_public_bytes(public))
        key = _key(shared, public, identity.public.seal)
        return ChaCha20Poly1305(key).decrypt(_NONCE, sealed, statement.encode())
    except (InvalidTag, ValueError):  # ValueError: also a key that is no key
        raise EnvelopeError("not this site's envelope for this answer") from None


def _key(shared: bytes, fresh: bytes, compensator: bytes) -> bytes:
    return derive(shared, "cupola envelope 1", fresh, compensator)


def _signed(statement: Statement, public: bytes, sealed: bytes) -> bytes:
    return pack("cupola signature 1", statement.encode(), public, sealed)
