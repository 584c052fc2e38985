"""Three hospitals of two populations that drifted apart, with a trait that many variants shape, on
some autosomes: what components and whole-genome regression are for. Just as many people as the
limits allow that a site has by default; every chromosome more is some hundred messages more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hapmap import COHORT, write_study

from cupola.association.bed import write_bed

PEOPLE, CHROMOSOMES, EACH = 360, 8, 12  # of a hospital; variants of a chromosome
STRUCTURE = {
    "test": "logistic",
    "trait": {"column": "CC"},
    "covariates": ["AGE", "PC1-2"],
    "components": {"count": 2, "block": 6, "sums": 12, "residual": 0.01},
    "whole_genome": {"block": EACH},
    "chunk": 128,
}
_CODES = np.array([3, 2, 0, 1], np.uint8)  # of a .bed file, by copies of a1; 1: no call
_SHARES = (0.2, 0.5, 0.8)  # of the second population, by hospital


def write_structured(path: Path, folders: dict[str, Path], **changes: Any) -> Path:
    """The files of three hospitals, and a study of them."""
    _draw(list(folders.values()))
    return write_study(path, folders, **{**STRUCTURE, **changes})


def _draw(folders: list[Path]) -> None:
    rng, m, n = np.random.default_rng(27), CHROMOSOMES * EACH, PEOPLE * len(folders)
    home = np.repeat(np.arange(len(folders)), PEOPLE)
    population = (rng.random(n) < np.array(_SHARES)[home]).astype(int)
    middle, drift = rng.uniform(0.3, 0.7, m), 0.15 * rng.choice([-1.0, 1.0], m)
    copies = rng.binomial(2, (middle[:, None] + drift[:, None] * (population - 0.5)))
    level = rng.normal(size=m) @ (copies - copies.mean(axis=1, keepdims=True))
    age = rng.normal(50, 10, n).round(1)
    score = 1.5 * level / level.std() + population + 0.02 * (age - 50) + rng.normal(size=n)
    case = 1 + (score > np.quantile(score, 0.6))
    copies[rng.random(copies.shape) < 0.01] = 3
    chromosome = np.repeat(np.arange(1, CHROMOSOMES + 1), EACH)
    bim = "".join(f"{c}\trs{i}\t0\t{1000 * (i + 1)}\tA\tG\n" for i, c in enumerate(chromosome))
    for i, folder in enumerate(folders):
        here = np.flatnonzero(home == i)
        base = folder / COHORT["bfile"]
        write_bed(base.with_suffix(".bed"), _CODES[copies[:, here]])
        base.with_suffix(".bim").write_text(bim)
        ids = [f"f{k} p{k}" for k in here]
        fam = [f"{p} 0 0 {1 + k % 2} {case[k]}\n" for p, k in zip(ids, here)]
        base.with_suffix(".fam").write_text("".join(fam))
        for end, name, values in ((".pheno", "CC", case), (".cov", "AGE", age)):
            rows = [f"{p} {values[k]:g}\n" for p, k in zip(ids, here)]
            base.with_suffix(end).write_text(f"FID IID {name}\n" + "".join(rows))
