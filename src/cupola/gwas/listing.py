"""The proposed list of variants as bytes: columns, each compressed. Some 7 bytes a variant."""

from __future__ import annotations

import itertools
import zlib

import numpy as np

from cupola.errors import FederationError
from cupola.gwas.files import Variants

MOST = 1 << 26  # variants in a list
_TEXT = 200  # bytes of names or alleles a variant may take on average


def pack(variants: Variants) -> np.ndarray:
    """A list as uint8."""
    steps = np.diff(variants.position, prepend=0).astype("<i8")
    planes = steps.view(np.uint8).reshape(-1, 8).T  # equal bytes side by side compress better
    columns = [
        variants.chromosome.astype(np.uint8).tobytes(),
        planes.tobytes(),
        "\n".join(variants.name.tolist()).encode(),
        "\n".join(variants.a1.tolist()).encode(),
        "\n".join(variants.a2.tolist()).encode(),
    ]
    parts = [zlib.compress(column, 6) for column in columns]
    head = np.array([len(variants), *map(len, parts)], "<i8").tobytes()
    return np.frombuffer(head + b"".join(parts), np.uint8)


def unpack(packed: np.ndarray) -> Variants:
    """The list, or FederationError: it comes from another party."""
    try:
        data = packed.tobytes()
        count, *sizes = np.frombuffer(data[:48], "<i8").tolist()
        if not 0 <= count <= MOST or min(sizes) < 0 or 48 + sum(sizes) != len(data):
            raise ValueError("sizes")
        ends = np.cumsum([48, *sizes]).tolist()
        parts = [data[a:b] for a, b in itertools.pairwise(ends)]
        chromosome = np.frombuffer(_inflate(parts[0], count), np.uint8)
        planes = np.frombuffer(_inflate(parts[1], 8 * count), np.uint8).reshape(8, -1)
        steps = np.ascontiguousarray(planes.T).view("<i8").reshape(-1)
        texts = [_inflate(part, _TEXT * count + 1).decode().split("\n") for part in parts[2:]]
        if count == 0:
            texts = [[], [], []]
        if {len(chromosome), len(steps), *map(len, texts)} != {count}:
            raise ValueError("columns")
        return Variants(chromosome, np.cumsum(steps), *(np.array(t, str) for t in texts))
    except (ValueError, zlib.error, UnicodeDecodeError) as error:
        raise FederationError("the list of variants is not well formed") from error


def _inflate(part: bytes, most: int) -> bytes:
    opened = zlib.decompressobj()
    found = opened.decompress(part, most + 1)
    if len(found) > most or not opened.eof:
        raise ValueError("too long")
    return found
