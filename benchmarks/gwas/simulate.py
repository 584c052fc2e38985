"""Simulated people at the size of the paper: three cohorts, and the same people pooled."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cupola.association.bed import MAGIC
from cupola.base.randomness import generator

COVARIATES = ("AGE", "SEX", "SMOKE", "PACKYEARS")
_BLOCK = 500  # variants at a time; every first of them has an effect
_COPIES = np.array([2, 0, 1, 0])


def simulate(
    folder: Path,
    people: int,
    variants: int,
    missing: float = 0.005,
    cohorts: int = 3,
    seed: int = 1,
    effect: float = 0.12,
    pooled: bool = True,
) -> None:
    """Writes all.* (if pooled) and c0.*, c1.*, ...: .bed .bim .fam .cov .pheno. Every 500th variant
    has an effect on both traits. Does nothing where it has been done."""
    done = folder / f"{people}-{variants}-{missing}-{cohorts}-{seed}-{effect}"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = generator(seed, "gwas benchmark")
    parts = np.array_split(np.arange(people), cohorts)
    places = [(folder / "all.bed", np.arange(people))] if pooled else []
    places += [(folder / f"c{i}.bed", part) for i, part in enumerate(parts)]
    files = [path.open("wb") for path, _ in places]
    for file in files:
        file.write(MAGIC)
    level = np.zeros(people)
    for start in range(0, variants, _BLOCK):
        k = min(_BLOCK, variants - start)
        frequency = rng.beta(1.0, 2.0, (k, 1)) * 0.45 + 0.01
        draw = rng.integers(0, 1 << 32, (k, people), np.uint32)  # one for both copies
        both, none = frequency**2 * 2.0**32, (1 - frequency) ** 2 * 2.0**32
        # 3 no copy, 2 one, 0 both, as in a .bed file
        calls = (draw >= both.astype(np.uint32)).view(np.uint8) << np.uint8(1)
        calls |= draw >= (2.0**32 - none).astype(np.uint32)
        level += effect * _COPIES[calls[0]]
        calls[rng.integers(0, 1 << 16, (k, people), np.uint16) < missing * 2**16] = 1
        for file, (_, who) in zip(files, places):
            file.write(_packed(calls[:, who[0] : who[-1] + 1]))
    for file in files:
        file.close()
    number = 1 + 22 * np.arange(variants) // variants
    position = 1000 + 2000 * (np.arange(variants) - np.searchsorted(number, number))
    rows = enumerate(zip(number.tolist(), position.tolist()))
    bim = "".join(f"{c}\trs{i}\t0\t{at}\tA\tG\n" for i, (c, at) in rows)
    _write_people(rng, level, places, bim)
    done.touch()


def _packed(calls: np.ndarray) -> bytes:
    """`bed.packed`, four calls a 32-bit word at a time."""
    k, people = calls.shape
    full = np.zeros((k, -(-people // 4)), "<u4")
    full.view(np.uint8)[:, :people] = calls
    full |= full >> 6
    full |= full >> 12
    return full.astype(np.uint8).tobytes()


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
