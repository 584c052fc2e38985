"""Messages over a pipe: their length, then their bytes. Imports nothing, so that a process which
only hands messages on stays small."""

from __future__ import annotations

from collections.abc import Callable
from typing import IO


def write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def read_frame(pipe: IO[bytes], largest: Callable[[], int | None] = lambda: None) -> bytes:
    """One frame, or empty bytes at the end of the stream, or if it claims to be too large."""
    size = pipe.read(8)
    if len(size) < 8:
        return b""
    length = int.from_bytes(size, "little")
    most = largest()
    if most is not None and length > 8 + most:
        return b""
    data = pipe.read(length)
    return data if len(data) == length else b""


# A receipt (see `federation.receipts`) stands in front of an answer.
RECEIPT, RECEIPT_SIZE = b"R", 1 + 8 + 16 + 16


def after_receipt(answer: bytes) -> bytes:
    """An answer without its receipt."""
    has_one = answer[:1] == RECEIPT and len(answer) >= RECEIPT_SIZE
    return answer[RECEIPT_SIZE:] if has_one else answer
