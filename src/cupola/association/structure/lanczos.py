"""Block Lanczos with full reorthogonalisation (Golub and Underwood 1977), in portable arithmetic.

Of a symmetric matrix A only products A V are known, one total each. The basis Q = [V1 V2 ...] is
orthonormal, T = Q'AQ. A pair (theta, s) of T gives the Ritz value theta and the vector Q s. Since
A Q = Q T + V_next R on the last block, its residual |A Q s - theta Q s| is |R s_last|: no product
is needed to know it. Sites repeat all of this bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cupola.association.portable_algebra import combined, eigen, products, total
from cupola.base.randomness import uniforms

_NOTHING = 1e-9  # of A's size: a column this short is rounding


def start(seed: int, rows: int, width: int) -> np.ndarray:
    """Orthonormal columns that nobody chooses: drawn by counters, the same everywhere."""
    drawn = uniforms(seed, "components", 0, range(rows), width)[:, :width] - 0.5
    return orthonormal(drawn, [], 1.0)


def against(block: np.ndarray, basis: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A block less its part in the basis, and that part's coefficients."""
    parts = [products(q, block) for q in basis]
    for q, part in zip(basis, parts):
        block = block - combined(q, part)
    return block, np.concatenate(parts) if parts else np.zeros((0, block.shape[1]))


def orthonormal(block: np.ndarray, basis: Sequence[np.ndarray], size: float) -> np.ndarray:
    """Orthonormal columns that, with the basis, span the block as well (Gram and Schmidt, twice).
    size: of A; columns of which only rounding is left are dropped."""
    for _ in range(2):
        block, _ = against(block, basis)
    found = _columns(block, _NOTHING * size)
    found, _ = against(found, basis)  # short columns have grown, and their rounding with them
    return _columns(found, 0.5)


def _columns(block: np.ndarray, least: float) -> np.ndarray:
    """Orthonormal columns of a block; shorter ones than `least` are dropped."""
    found: list[np.ndarray] = []
    for j in range(block.shape[1]):
        column = block[:, j : j + 1]
        for _ in range(2):
            column, _ = against(column, found)
        length = np.sqrt(total(column[:, 0] * column[:, 0]))
        if length > least:
            found.append(column / length)
    return np.concatenate(found, axis=1) if found else block[:, :0]


@dataclass(frozen=True)
class Krylov:
    """What has been learned. blocks: of the basis, multiplied with A. small: T."""

    blocks: tuple[np.ndarray, ...]
    small: np.ndarray

    def more(self, block: np.ndarray, product: np.ndarray) -> tuple[Krylov, np.ndarray, np.ndarray]:
        """After A times the next block: the basis with it, the block after it, and R."""
        blocks = (*self.blocks, block)
        rest, part = against(product, blocks)
        k, b = len(self.small), block.shape[1]
        small = np.zeros((k + b, k + b))
        small[:k, :k] = self.small
        small[:, k:] = part
        small[k:] = part.T
        small[k:, k:] = (part[k:] + part[k:].T) / 2
        size = float(np.max(np.abs(np.diagonal(small))))
        following = orthonormal(rest, blocks, size)
        return Krylov(blocks, small), following, products(following, product)

    def pairs(self, following: np.ndarray) -> Ritz:
        """following: R."""
        values, vectors = eigen(self.small)
        last = self.blocks[-1].shape[1]
        left = combined(following, vectors[len(vectors) - last :])
        return Ritz(values, vectors, np.sqrt(total(left * left)))

    def vectors(self, small: np.ndarray) -> np.ndarray:
        """Q s for columns s of T's size."""
        at, found = 0, np.zeros((len(self.blocks[0]), small.shape[1]))
        for block in self.blocks:
            found += combined(block, small[at : at + block.shape[1]])
            at += block.shape[1]
        return found


@dataclass(frozen=True)
class Ritz:
    """values: the largest first. residuals: |A v - theta v|."""

    values: np.ndarray
    vectors: np.ndarray
    residuals: np.ndarray

    def relative(self, count: int) -> np.ndarray:
        """|A v - theta v| / theta of the first components."""
        return self.residuals[:count] / self.values[:count]

    def gaps(self, count: int) -> np.ndarray:
        """How far the first components are from their nearest neighbours, over theta."""
        values = self.values[: count + 1]
        if len(values) == count:  # no other is known
            values = np.append(values, 0.0)
        step = values[:-1] - values[1:]
        above = np.append(step[:1], step[:-1])
        return np.minimum(step, above) / values[:-1]

    def determined(self, count: int) -> np.ndarray:
        """Which components are apart from their neighbours by more than they are uncertain."""
        sure = self.residuals[: count + 1]
        sure = np.append(sure, 0.0) if len(sure) == count else sure
        apart = -np.diff(np.append(self.values, 0.0)[: count + 1])
        after = apart > sure[:-1] + sure[1:]
        before = np.append([True], after[:-1])
        return np.asarray(after & before)
