"""Simulated people at the size of the paper: three cohorts, and the same people pooled."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cupola.federation.randomness import generator
from cupola.gwas.bed import MAGIC, packed

COVARIATES = ("AGE", "SEX", "SMOKE", "PACKYEARS")
_BLOCK = 2000
_CALLS = np.array([3, 2, 0, 1], np.uint8)


def simulate(
    folder: Path,
    people: int,
    variants: int,
    missing: float = 0.005,
    cohorts: int = 3,
    seed: int = 1,
    effect: float = 0.12,
) -> None:
    """Writes all.* and c0.*, c1.*, ...: .bed .bim .fam .cov .pheno. Every 500th variant has an
    effect on both traits. Does nothing where it has been done."""
    done = folder / f"{people}-{variants}-{missing}-{cohorts}-{seed}-{effect}"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = generator(seed, "gwas benchmark")
    parts = np.array_split(np.arange(people), cohorts)
    places = [(folder / "all.bed", np.arange(people))]
    places += [(folder / f"c{i}.bed", part) for i, part in enumerate(parts)]
    files = [path.open("wb") for path, _ in places]
    for file in files:
        file.write(MAGIC)
    level = np.zeros(people)
    for start in range(0, variants, _BLOCK):
        k = min(_BLOCK, variants - start)
        frequency = rng.beta(1.0, 2.0, (k, 1)) * 0.45 + 0.01
        copies = (rng.random((k, people), np.float32) < frequency).astype(np.uint8)
        copies += rng.random((k, people), np.float32) < frequency
        level += effect * copies[::500].sum(axis=0)
        copies[rng.random((k, people), np.float32) < missing] = 3
        calls = _CALLS[copies]
        for file, (_, who) in zip(files, places):
            file.write(packed(calls[:, who]).tobytes())
    for file in files:
        file.close()
    number = 1 + 22 * np.arange(variants) // variants
    position = 1000 + 2000 * (np.arange(variants) - np.searchsorted(number, number))
    rows = enumerate(zip(number.tolist(), position.tolist()))
    bim = "".join(f"{c}\trs{i}\t0\t{at}\tA\tG\n" for i, (c, at) in rows)
    _write_people(rng, level, places, bim)
    done.touch()


def _write_people(
    rng: np.random.Generator, effect: np.ndarray, places: list[tuple[Path, np.ndarray]], bim: str
) -> None:
    n = len(effect)
    columns = {
        "AGE": rng.normal(60, 9, n).round(1),
        "SEX": rng.integers(1, 3, n),
        "SMOKE": rng.integers(0, 2, n),
        "PACKYEARS": rng.gamma(2.0, 18.0, n).round(1),
    }
    level = effect - effect.mean() + 0.03 * (columns["AGE"] - 60) + 0.3 * columns["SMOKE"]
    qt = (level + rng.normal(0, 1.5, n)).round(4)
    cc = 1 + (rng.random(n) < 1 / (1 + np.exp(-level))).astype(int)
    for path, who in places:
        path.with_suffix(".bim").write_text(bim)
        ids = [f"f{i} p{i}" for i in who]
        path.with_suffix(".fam").write_text(
            "".join(f"{p} 0 0 {columns['SEX'][i]} {cc[i]}\n" for p, i in zip(ids, who))
        )
        path.with_suffix(".pheno").write_text(
            "FID IID CC QT\n" + "".join(f"{p} {cc[i]} {qt[i]}\n" for p, i in zip(ids, who))
        )
        rows = (
            f"{p} " + " ".join(str(columns[c][i]) for c in COVARIATES) for p, i in zip(ids, who)
        )
        path.with_suffix(".cov").write_text(
            f"FID IID {' '.join(COVARIATES)}\n" + "".join(row + "\n" for row in rows)
        )
