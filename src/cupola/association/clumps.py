"""Clumps of a finished study: hits, and the near variants that are linked to them, as PLINK 1.9's
`--clump` puts them together.

The best variant below p1 takes the near ones below p2 with r^2 at least a threshold, and the next
one that is free goes on. r^2 is that of haplotypes by maximum likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import numpy as np

from cupola.association import clumping

if TYPE_CHECKING:
    from cupola.association.results import Results
    from cupola.association.study_program import Association
    from cupola.federation.program import State

_BLOCK = 1 << 12  # pairs at once
_GRID, _HALVINGS = 64, 60
_LEVELS = (0.05, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class Clump:
    """index: a row of the results. members: other rows, along the genome. r2: of each with the
    index. near, near_r2: those with p below p2 in its window whose r2 is known, linked or not.
    unknown: partners of which a cohort withholds r2."""

    index: int
    members: np.ndarray
    r2: np.ndarray
    near: np.ndarray
    near_r2: np.ndarray
    unknown: int


def clumps(program: Association, state: State, found: Results) -> list[Clump]:
    """The clumps, the best first; none for a study that asks for none."""
    wanted = program.study.clump
    if wanted is None:
        return []
    with np.errstate(invalid="ignore"):
        small = found.log10_p <= np.log10(wanted.p2)
        heads = np.flatnonzero(found.log10_p <= np.log10(wanted.p1))
    known = _linkage(program, state, found)
    free, result = small.copy(), []
    for index in heads[np.argsort(found.log10_p[heads], kind="stable")].tolist():
        if not free[index]:
            continue
        free[index] = False
        others, r2 = known.get(index, (np.zeros(0, np.int64), np.zeros(0)))
        near = small[others]
        others, r2 = others[near], r2[near]
        with np.errstate(invalid="ignore"):
            linked = free[others] & (r2 >= wanted.r2)
        members = others[linked]
        free[members] = False
        told = ~np.isnan(r2)
        lost = int((~told).sum())
        result.append(Clump(index, members, r2[linked], others[told], r2[told], lost))
    return result


def _linkage(
    program: Association, state: State, found: Results
) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Of each variant with partners: their rows along the genome, and r^2 (NaN: withheld)."""
    row = np.full(len(state.arrays["reason"]), -1)
    row[found.rows] = np.arange(len(found.rows))
    ends, values = [], []
    for i, part in enumerate(clumping.chosen(program, state)[0]):
        ends.append(row[part.rows][part.pairs])
        values.append(r_squared(state.arrays[f"clump/{i}"]))
    if not ends:
        return {}
    pairs, r2 = np.concatenate(ends), np.concatenate(values)
    both, twice = np.concatenate([pairs, pairs[:, ::-1]]), np.concatenate([r2, r2])
    order = np.lexsort((both[:, 1], both[:, 0]))
    both, twice = both[order], twice[order]
    first, start = np.unique(both[:, 0], return_index=True)
    parts = zip(first.tolist(), np.split(both[:, 1], start[1:]), np.split(twice, start[1:]))
    return {index: (others, some) for index, others, some in parts}


def r_squared(counts: np.ndarray) -> np.ndarray:
    """Of (pairs, 5) counts of haplotypes; NaN where they are withheld or a variant has one allele
    among those with both calls."""
    parts = [_likeliest(counts[i : i + _BLOCK]) for i in range(0, len(counts), _BLOCK)]
    return np.concatenate([np.zeros(0), *parts])


def _likeliest(counts: np.ndarray) -> np.ndarray:
    """Frequencies of alleles are as counted; what is left is that of a1-a1, between bounds: the
    best of a grid, then by golden section."""
    known, both = counts[:, :4].astype(float), counts[:, 4].astype(float)
    with np.errstate(invalid="ignore", divide="ignore"):
        people2 = known.sum(axis=1) + 2 * both
        a = (known[:, 0] + known[:, 1] + both) / people2
        b = (known[:, 0] + known[:, 2] + both) / people2
    low, high = np.maximum(0.0, a + b - 1), np.minimum(a, b)

    def score(x: np.ndarray) -> np.ndarray:
        shape = (slice(None), *[None] * (x.ndim - 1))
        p = np.stack([x, a[shape] - x, b[shape] - x, 1 - a[shape] - b[shape] + x])
        p = np.maximum(p, 1e-300)
        mixed = p[0] * p[3] + p[1] * p[2]
        logs = sum(known[:, i][shape] * np.log(p[i]) for i in range(4))
        return np.asarray(logs + both[shape] * np.log(np.maximum(mixed, 1e-300)))

    with np.errstate(invalid="ignore", divide="ignore"):
        steps = np.linspace(0, 1, _GRID)
        grid = low[:, None] + (high - low)[:, None] * steps
        best = np.argmax(score(grid), axis=1)
        width = (high - low) / (_GRID - 1)
        left = np.maximum(low, grid[np.arange(len(a)), best] - width)
        right = np.minimum(high, grid[np.arange(len(a)), best] + width)
        golden = (np.sqrt(5) - 1) / 2
        for _ in range(_HALVINGS):
            x, y = right - golden * (right - left), left + golden * (right - left)
            up = score(x) < score(y)
            left, right = np.where(up, x, left), np.where(up, right, y)
        d = (left + right) / 2 - a * b
        r2 = d * d / (a * (1 - a) * b * (1 - b))
    fine = (counts.min(axis=1) >= 0) & (a > 0) & (a < 1) & (b > 0) & (b < 1)
    return np.where(fine, r2, np.nan)


def write_clumped(file: IO[bytes], found: Results, made: list[Clump]) -> None:
    """PLINK's .clumped. TOTAL counts variants below p2 alone: of others nothing is asked."""
    v, log10 = found.variants, found.log10_p
    head = ["CHR", "F", "SNP", "BP", "P", "TOTAL", "NSIG", "S05", "S01", "S001", "S0001", "SP2"]
    lines = ["\t".join(head)]
    for clump in made:
        i, names = clump.index, v.name[clump.members].tolist()
        cuts = np.log10(_LEVELS)
        band = np.searchsorted(-cuts, -log10[clump.members], "left")
        counts = [int((band == k).sum()) for k in range(len(cuts) + 1)]
        members = ",".join(f"{name}(1)" for name in names) or "NONE"
        cells = [int(v.chromosome[i]), 1, v.name[i], int(v.position[i]), _p(log10[i]), len(names),
                 *counts, members]  # fmt: skip
        lines.append("\t".join(map(str, cells)))
    file.write(("\n".join(lines) + "\n").encode())


def write_linkage(file: IO[bytes], found: Results, made: list[Clump]) -> None:
    """r^2 of every index variant with the near ones below p2, and which are in its clump."""
    v = found.variants
    lines = ["INDEX\tSNP\tCHR\tBP\tP\tR2\tIN_CLUMP"]
    for clump in made:
        inside = set(clump.members.tolist())
        name = v.name[clump.index]
        for j, r2 in zip(clump.near.tolist(), clump.near_r2.tolist()):
            cells = [name, v.name[j], int(v.chromosome[j]), int(v.position[j]),
                     _p(found.log10_p[j]), f"{r2:.4g}", int(j in inside)]  # fmt: skip
            lines.append("\t".join(map(str, cells)))
    file.write(("\n".join(lines) + "\n").encode())


def _p(log10: float) -> str:
    if log10 > -300:
        return f"{10**log10:.4g}"
    power = int(np.floor(log10))
    return f"{10 ** (log10 - power):.4g}e{power}"
