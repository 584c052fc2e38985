"""Receipts: how the other side notices that a party's folder is an old or an edited copy.

A party writes a line for every question into its own ledger, a hash chain, before anything leaves.
The line says how far everything else in its folder is, so that a single file that was put back is
noticed where it is. The chain's head goes with every answer: number of lines, hash, and the hash
before. Who asks remembers the last receipt. A folder that was put back as a whole is behind it.

A receipt tells nothing else: a random number is in the chain, so that nobody can guess the rest,
and a line is written for every question, whatever the data are. Each process adds a number, so that
two copies of a folder part ways even where they are asked the same.
"""

from __future__ import annotations

import json
import math
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from cupola.base.chain import AGAIN, Chain, Tail, damaged, read_json, sealed_json
from cupola.base.files import sync_folder, take, write_atomically
from cupola.base.frames import RECEIPT, RECEIPT_SIZE
from cupola.base.jsonl import write_whole
from cupola.errors import DataError

_COPY = "restore this folder from its newest copy, or withdraw and join under a new name"


class Kept(Protocol):
    """Something in a party's folder that only goes forward."""

    def require(self, seen: Any) -> None:
        """DataError unless it is at least as far as it was seen to be."""


@dataclass(frozen=True)
class Receipt:
    """Lines of a party's ledger, its head, and the head before the last line."""

    count: int
    head: str
    before: str

    def packed(self) -> bytes:
        heads = bytes.fromhex(self.head + self.before)
        return RECEIPT + self.count.to_bytes(8, "little") + heads


def split_receipt(answer: bytes) -> tuple[Receipt | None, bytes]:
    """An answer's receipt, if it has one, and the rest."""
    if answer[:1] != RECEIPT or len(answer) < RECEIPT_SIZE:
        return None, answer
    count, head, before = answer[1:9], answer[9:25], answer[25:RECEIPT_SIZE]
    return Receipt(int.from_bytes(count, "little"), head.hex(), before.hex()), answer[RECEIPT_SIZE:]


class Journal:
    """A party's own ledger as a chain in its folder. answered: whether this party has answered
    before; then a ledger that is not there was lost."""

    def __init__(self, path: Path, answered: Callable[[], bool] = lambda: False) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._answered = path, answered
        self._chain: Chain | None = None
        self._size = 0  # bytes that are the chain's
        self._seen: dict[str, Any] = {}
        self._salted = False
        self._holds: Callable[[], Mapping[str, Any]] = dict

    def hold(self, kept: Mapping[str, tuple[Kept, Callable[[], Any]]]) -> None:
        """Verify what the folder holds against the last line, and note it in later ones. kept: by
        name, what it is and how far it is. Called whenever the folder is opened anew."""
        self._holds = dict  # of a folder that is refused nothing is noted
        chain = self._open()
        if not chain.count:  # before the first answer is stored: who has one has a ledger
            self.write({"begun": True})
        for name, (part, _) in kept.items():
            if name in self._seen:
                part.require(self._seen[name])
        self._holds = lambda: {name: far() for name, (_, far) in kept.items()}

    @property
    def tail(self) -> Tail:
        """How many lines there are, and the hash that stands for them."""
        return (self._chain or self._open()).tail

    def require(self, tail: Tail) -> None:
        """DataError unless this ledger goes on from what was seen of it."""
        self._open().require(self.path, tail, _COPY)

    @property
    def seen(self) -> Mapping[str, Any]:
        """How far everything was at the last line."""
        self._open()
        return self._seen

    def _open(self) -> Chain:
        """Read again: another process may have answered for this party since."""
        whole = self.path.read_bytes() if self.path.exists() else b""
        if not whole and self._answered():
            raise damaged(self.path, "it is missing, and questions were answered", _COPY)
        self._chain = None  # to a damaged ledger nothing is added
        chain = Chain()
        seen: dict[str, Any] = {}
        for record in chain.read(self.path, whole, _COPY):
            seen = record.get("holds") or seen
        self._chain, self._seen, self._salted = chain, seen, False
        self._size = whole.rfind(b"\n") + 1
        return chain

    def write(self, line: Mapping[str, Any]) -> Receipt:
        """One more line, on disk when this returns."""
        with self.path.open("ab", buffering=0) as file:
            take(file, wait=math.inf)  # a process that is refused says so here, too
            chain = self._chain
            if chain is None or file.seek(0, os.SEEK_END) != self._size:
                chain = self._read_on()
                os.truncate(self.path, self._size)  # a crash's line: nothing left on its account
            before = chain.head or "0" * 32
            first = {} if self._salted else {"salt": secrets.token_hex(16)}
            holds = {"holds": held} if (held := dict(self._holds())) else {}
            data, _ = chain.line(json.dumps({**line, **holds, **first}))
            try:
                write_whole(file, data)
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self.path, self._size)
                raise
            if not chain.count:
                sync_folder(self.path.parent)  # else a power cut may take the file itself
        chain.take(data[:-1])
        self._size += len(data)
        self._salted = True
        return Receipt(chain.count, chain.head, before)

    def _read_on(self) -> Chain:
        """The ledger as another process left it, which goes on from what this one knows."""
        known, size = self._chain, self._size
        try:
            chain = self._open()
            chain.require(self.path, known.tail if known else (0, ""), _COPY)
        except DataError:
            self._chain, self._size = known, size
            raise
        return chain


class Receipts:
    """The last receipt of every party, at who asks them; in a file, if one is named.

    An answer may be lost on its way, so that numbers may leap forward. They never go back, and a
    receipt that follows the last one names it. A party that went back stays refused until it
    proves that it has the last one again.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._last: dict[str, list[Any]] = {}  # party -> count, head, whether it went back
        if path is not None and path.exists():
            self._last = read_json(path, AGAIN)

    def refusal(self, party: str, receipt: Receipt | None) -> str | None:
        """Why this answer is not taken; else its receipt is the last one from now on."""
        last = self._last.get(party)
        if receipt is None:  # of an earlier version, or in a trial without folders
            return None if last is None else f"{party} sends no receipt any more"
        if last is not None:
            count, head, strayed = last
            follows = receipt.count == count + 1 and receipt.before == head
            if not follows and (receipt.count <= count + 1 or strayed):
                self._keep(party, [count, head, True])
                return (
                    f"its folder is an old or an edited copy (line {receipt.count} of its ledger "
                    f"does not go on from line {count}): restore its newest copy"
                )
        self._keep(party, [receipt.count, receipt.head, False])
        return None

    def _keep(self, party: str, last: list[Any]) -> None:
        if self._last.get(party) == last:
            return
        self._last[party] = last
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            text = sealed_json(self._path.name, json.dumps(self._last, indent=1))
            write_atomically(self._path, text)
