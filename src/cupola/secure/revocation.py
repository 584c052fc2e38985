"""Revoking a key: its owner signs that it must not be trusted any more, and others believe that.

Whoever stole the key can sign this, too: then it is revoked all the same, which is right.
"""

from __future__ import annotations

import json
from pathlib import Path

from cupola.base.files import write_atomically
from cupola.errors import FederationError
from cupola.secure.canonical import pack
from cupola.secure.identity import Identity, Party

FOLDER = "revoked"
_MOST = 4096  # bytes of a revocation


def revocation(identity: Identity) -> str:
    """The owner's word that its keys are revoked, as JSON to hand out."""
    party = identity.public
    return json.dumps(
        {
            "cupola": "revocation",
            "name": party.name,
            "sign": party.sign.hex(),
            "seal": party.seal.hex(),
            "signature": identity.sign.sign(_statement(party)).hex(),
        },
        indent=1,
    )


def revoked_party(text: str | bytes) -> Party:
    """Whose keys a revocation is about; FederationError if their owner did not sign it."""
    try:
        if len(text) > _MOST:
            raise ValueError("size")
        facts = json.loads(text)
        if facts["cupola"] != "revocation":
            raise ValueError("kind")
        sign, seal, signature = (bytes.fromhex(facts[k]) for k in ("sign", "seal", "signature"))
        party = Party(facts["name"], sign, seal)
        if not party.signed(_statement(party), signature):
            raise ValueError("signature")
        return party
    except (ValueError, KeyError, TypeError, RecursionError):
        raise FederationError("this is not a revocation signed by the key's owner") from None


def keep_revocation(folder: Path, text: str | bytes) -> Party:
    """Believe a revocation from now on; folder: of the party that believes it."""
    party = revoked_party(text)
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    body = text.encode() if isinstance(text, str) else text
    write_atomically(place / f"{party.sign.hex()}.json", body)
    return party


def is_revoked(folder: Path, party: Party) -> bool:
    """Whether this party's signing key was revoked, as far as is known here."""
    return (folder / FOLDER / f"{party.sign.hex()}.json").exists()


def _statement(party: Party) -> bytes:
    return pack("cupola revocation 1", party.name, party.sign, party.seal)
