"""One way to turn values into bytes for hashing, signing and deriving keys.

Every part carries its type and length, so that two different lists of values never give the same
bytes: nothing signed in one place can be read as something else in another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

Value = str | bytes | int | None | Sequence["Value"]


def pack(*values: Value) -> bytes:
    """Unambiguous bytes of texts, bytes, integers, None, and lists of them."""
    return b"".join(_part(value) for value in values)


def digest(*values: Value) -> bytes:
    """SHA-256 of the packed values, 32 bytes."""
    return hashlib.sha256(pack(*values)).digest()


def _part(value: Value) -> bytes:
    if value is None:
        kind, body = b"n", b""
    elif isinstance(value, bytes):
        kind, body = b"b", value
    elif isinstance(value, str):
        kind, body = b"s", value.encode()
    elif isinstance(value, int):
        kind, body = b"i", str(int(value)).encode()
    else:
        kind, body = b"l", pack(*value)
    return kind + len(body).to_bytes(8, "little") + body


def is_name(text: object, longest: int = 200) -> bool:
    """Whether this can name a study, a party or an array: printable, so also encodable."""
    return (
        isinstance(text, str)
        and 0 < len(text) <= longest
        and text.isprintable()
        and text == text.strip()
    )


def is_whole(number: object, largest: int = 2**63 - 1) -> bool:
    """Whether this is an integer (no bool) from 0 to `largest`."""
    return type(number) is int and 0 <= number <= largest
