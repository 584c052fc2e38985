"""A file's chain, to look at."""

from __future__ import annotations

from pathlib import Path

from cupola.base.chain import Chain


def chain_of(path: Path) -> Chain:
    """A file's chain, verified; of a file that is not there, the empty one."""
    chain = Chain()
    if path.exists():
        for _ in chain.read(path, path.read_bytes()):
            pass
    return chain
