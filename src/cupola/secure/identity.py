"""Who a party is: a key to sign with (Ed25519) and a key to be written to with (X25519).

Every party makes its own keys and hands out the public halves, which people compare by their
fingerprints and pin in the roster.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import stat
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from cupola.errors import DataError, FederationError
from cupola.secure.canonical import digest, is_name
from cupola.secure.mask_stream import derive

FORMAT = 1
_FIELD = 2**255 - 19
_ANY_KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))  # known to all, protects nothing
_SMALL = 4096  # bytes; a key file is smaller


@dataclass(frozen=True)
class Party:
    """What others know of a party: its name and its two public keys, 32 bytes each."""

    name: str
    sign: bytes
    seal: bytes

    def __post_init__(self) -> None:
        if not is_name(self.name, longest=100):
            raise FederationError("a party's name is 1 to 100 printable characters")
        for key, unused_bits in ((self.sign, 1), (self.seal, 0)):
            if not isinstance(key, bytes) or len(key) != 32:
                raise FederationError(f"'{self.name}': a public key has 32 bytes")
            # One key, one spelling: else the same key could count as two parties'.
            if int.from_bytes(key, "little") % 2 ** (256 - unused_bits) >= _FIELD:
                raise FederationError(f"'{self.name}': a public key is not in its usual form")

    def check(self) -> None:
        """FederationError for keys of small order, which anybody can sign or read with. No honest
        party has one: this is for keys that come from others."""
        y = int.from_bytes(self.sign, "little") % 2**255
        slope = pow(1 - y, -1, _FIELD) if y != 1 else 0
        for u in ((1 + y) * slope % _FIELD, int.from_bytes(self.seal, "little")):
            point = X25519PublicKey.from_public_bytes(u.to_bytes(32, "little"))
            try:
                _ANY_KEY.exchange(point)  # refuses all points of small order
            except ValueError:
                raise FederationError(f"'{self.name}': a public key protects nothing") from None

    def signed(self, message: bytes, signature: object) -> bool:
        """Whether this party put its name to a message."""
        return isinstance(signature, bytes) and _verified(self.sign, signature, message)

    @property
    def fingerprint(self) -> str:
        """Of name and keys, for people to compare."""
        return spoken(digest("cupola party 1", self.name, self.sign, self.seal))


@lru_cache(maxsize=1 << 13)  # simulated sites share a process, and verify the same
def _verified(key: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def spoken(hashed: bytes) -> str:
    """125 bits of a hash as people compare them: 'abcde-fghij-...'."""
    letters = base64.b32encode(hashed).decode().lower()[:25]
    return "-".join(letters[i : i + 5] for i in range(0, 25, 5))


class Identity:
    """A party's private side. repeatable: its keys can be computed by whoever knows the plan."""

    def __init__(self, name: str, sign: bytes, seal: bytes, *, repeatable: bool = False) -> None:
        self.name, self.repeatable = name, repeatable
        self.sign = Ed25519PrivateKey.from_private_bytes(sign)
        self.seal = X25519PrivateKey.from_private_bytes(seal)
        self.public = Party(
            name,
            self.sign.public_key().public_bytes_raw(),
            self.seal.public_key().public_bytes_raw(),
        )

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, {self.public.fingerprint})"

    @classmethod
    def create(cls, path: Path, name: str) -> Identity:
        """Make new keys from the operating system's randomness and write them to a new file that
        only its owner may read; an existing file is never touched."""
        sign, seal = secrets.token_bytes(32), secrets.token_bytes(32)
        identity = cls(name, sign, seal)
        facts = {"cupola": "identity", "format": FORMAT, "name": name}
        text = json.dumps({**facts, "sign": sign.hex(), "seal": seal.hex()})
        path.parent.mkdir(parents=True, exist_ok=True)
        _write_new(path, text.encode())
        return identity

    @classmethod
    def open(cls, path: Path) -> Identity:
        """The keys in a file that `create` wrote."""
        try:
            if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise DataError(
                    f"the key file '{path.name}' can be read by others; "
                    "make new keys, or if nobody saw these: chmod 600"
                )
            with path.open("rb") as file:
                return cls._from_json(json.loads(file.read(_SMALL)))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, FederationError):
            # Not the folder, nor what it holds: the message may cross the border.
            raise DataError(f"'{path.name}' cannot be read, or is not a key file") from None

    @classmethod
    def _from_json(cls, facts: Any) -> Identity:
        if facts["cupola"] != "identity" or facts["format"] != FORMAT:
            raise ValueError("format")
        return cls(facts["name"], bytes.fromhex(facts["sign"]), bytes.fromhex(facts["seal"]))

    @classmethod
    def simulated(cls, seed: int, name: str) -> Identity:
        """Keys from a plan's seed: for simulations, where nothing is secret."""
        secret = seed.to_bytes(32, "little", signed=True)
        sign, seal = (derive(secret, "cupola simulated", name, use) for use in ("sign", "seal"))
        return cls(name, sign, seal, repeatable=True)


def _write_new(path: Path, data: bytes) -> None:
    """All or nothing, for the owner only, and never over an existing file."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # unlike a rename, it fails if the name is taken
    except FileExistsError:
        raise DataError(f"'{path.name}' exists; keys are never overwritten") from None
    finally:
        part.unlink(missing_ok=True)
