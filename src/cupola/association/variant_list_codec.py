"""The proposed list of variants as bytes: blocks of columns, each compressed. Some 7 bytes a
variant. A block by itself is a list, too."""

from __future__ import annotations

import hashlib
import itertools
import re
import zlib
from typing import Any

import numpy as np

from cupola.association.files import Variants
from cupola.association.texts import Texts
from cupola.errors import FederationError

MOST = 1 << 26  # variants in a list
BLOCK = 1 << 16  # variants in a block
_LARGEST = 1 << 23  # the same, of others
_TEXT = 200  # bytes of names or alleles a variant may take on average
_ODD = re.compile(rb"\xc2[\x80-\xa0]|\xe2\x80[\x80-\x8a\xa8\xa9\xae\xaf]|\xe3\x80\x80")
_HEAD = 48
_LEVEL = 1  # what higher ones save is not worth their time


def pack(variants: Variants, block: int = BLOCK) -> np.ndarray:
    """A list as uint8."""
    parts = [_pack(variants[slice(i, i + block)]) for i in range(0, len(variants), block)]
    return np.frombuffer(b"".join(parts), np.uint8)


def fingerprint(variants: Variants) -> str:
    """SHA-256 of a list's content, however it is packed."""
    found = hashlib.sha256(variants.chromosome.astype(np.uint8).tobytes())
    found.update(variants.position.astype("<i8").tobytes())
    for texts in (variants.name, variants.a1, variants.a2):
        found.update(texts.lines() + b"\0")
    if variants.frequency is not None:
        found.update(_rates(variants))
    return found.hexdigest()


def _rates(variants: Variants) -> bytes:
    """Frequencies follow the chromosomes, in their column."""
    return b"" if variants.frequency is None else variants.frequency.astype("<f4").tobytes()


def _pack(variants: Variants) -> bytes:
    steps = np.diff(variants.position, prepend=0).astype("<i8")
    planes = steps.view(np.uint8).reshape(-1, 8).T  # equal bytes side by side compress better
    columns = [variants.chromosome.astype(np.uint8).tobytes() + _rates(variants), planes.tobytes()]
    columns += [text.lines() for text in (variants.name, variants.a1, variants.a2)]
    parts = [zlib.compress(column, _LEVEL) for column in columns]
    head = np.array([len(variants), *map(len, parts)], "<i8").tobytes()
    return head + b"".join(parts)


def blocks(packed: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The blocks of a list, and how many variants are in each, as they say themselves."""
    found, at, total = [], 0, 0
    while at < len(packed):
        head = packed[at : at + _HEAD].tobytes()
        if len(head) < _HEAD:
            raise FederationError("the list of variants is not well formed")
        count, *sizes = np.frombuffer(head, "<i8").tolist()
        end = at + _HEAD + sum(sizes)
        total += count
        if not 0 < count <= _LARGEST or min(sizes) < 0 or end > len(packed) or total > MOST:
            raise FederationError("the list of variants is not well formed")
        found.append((count, packed[at:end]))
        at = end
    return found


def unpack(packed: np.ndarray) -> Variants:
    """The list, or FederationError: it comes from another party."""
    try:
        parts = [_unpack(block.tobytes()) for _, block in blocks(packed)]
    except (ValueError, zlib.error, UnicodeDecodeError) as error:
        raise FederationError("the list of variants is not well formed") from error
    if not parts:
        return Variants(
            np.zeros(0, np.uint8), np.zeros(0, np.int64), Texts.of([]), Texts.of([]), Texts.of([])
        )
    if len(parts) == 1:
        return Variants(*parts[0])
    return Variants.joined([Variants(*part) for part in parts])


def _unpack(data: bytes) -> list[Any]:
    count, *sizes = np.frombuffer(data[:_HEAD], "<i8").tolist()
    ends = np.cumsum([_HEAD, *sizes]).tolist()
    parts = [data[a:b] for a, b in itertools.pairwise(ends)]
    first = _inflate(parts[0], 5 * count)
    chromosome, rates = np.frombuffer(first[:count], np.uint8), None
    if len(first) > count:
        rates = np.frombuffer(first[count:], "<f4")
        if len(rates) != count or ((rates < 0) | (rates > 1) | np.isinf(rates)).any():
            raise ValueError("frequencies")
    planes = np.frombuffer(_inflate(parts[1], 8 * count), np.uint8).reshape(8, -1)
    steps = np.ascontiguousarray(planes.T).view("<i8").reshape(-1)
    texts = [_words(_inflate(part, _TEXT * count + 1), count) for part in parts[2:]]
    if {len(chromosome), len(steps), *map(len, texts)} != {count}:
        raise ValueError("columns")
    return [chromosome, np.cumsum(steps), *texts, rates]


def _words(text: bytes, count: int) -> Texts:
    """Names or alleles as a .bim file could have them: none is empty, or has spaces or control
    characters, which would be other columns of a table."""
    data = np.frombuffer(text, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    lengths = np.diff(ends, prepend=-1, append=len(data)) - 1
    odd = np.count_nonzero(data <= ord(" ")) > len(ends) or b"\x7f" in text
    odd = odd or (not text.isascii() and bool(_ODD.search(text)))
    if odd or len(lengths) != count or lengths.min() <= 0:
        raise ValueError("names or alleles")
    text.decode()  # or UnicodeDecodeError
    return Texts.one_by_one(np.frombuffer(text.replace(b"\n", b""), np.uint8), lengths)


def _inflate(part: bytes, most: int) -> bytes:
    opened = zlib.decompressobj()
    found = opened.decompress(part, most + 1)
    if len(found) > most or not opened.eof:
        raise ValueError("too long")
    return found
