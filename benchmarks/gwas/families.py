"""Simulated people with what breaks plain regression: populations that drift apart, families of
three generations who are spread over cohorts, linkage disequilibrium, missing calls, and a
polygenic trait whose causal variants are on odd chromosomes only: even ones are null."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import norm

from cupola.association.bed import MAGIC, packed
from cupola.base.randomness import generator

CHROMOSOMES, EACH = 22, 910  # variants of a chromosome
_FST, _HERITABILITY, _CAUSAL, _MISSING = 0.01, 0.5, 400, 0.005
_SHIFT = np.array([0.0, 0.25, -0.25])  # of the trait, by population
_CODES = np.array([3, 2, 0, 1], np.uint8)  # of a .bed file, by copies of a1; 1: no call
_LEAVE = 0.3  # share of people who live in another cohort than most of their family


@dataclass(frozen=True)
class Draw:
    """related: the share of eights of people who are a family; the others are strangers."""

    seed: int
    eights: int
    related: float


#: Drawn before any result was looked at.
DRAWS = {
    "mild": Draw(4021, 375, 0.25),
    "heavy": Draw(4022, 375, 1.0),
    "12,000": Draw(4023, 1500, 0.25),
}


def simulate(folder: Path, draw: Draw, cohorts: int = 3, chromosomes: int = CHROMOSOMES) -> None:
    """Writes all.* and c0.*, c1.*, ...: .bed .bim .fam .pheno .cov, and causal.txt (rows of the
    .bim file). Does nothing where it has been done."""
    done = folder / "done"
    if done.exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = generator(draw.seed, "gwas families")
    n, m = 8 * draw.eights, chromosomes * EACH
    population = np.repeat(np.arange(3), -(-draw.eights // 3))[: draw.eights]
    families = rng.permutation(draw.eights) < draw.related * draw.eights
    home = (population + (rng.random(draw.eights) < 0.3)) % cohorts
    order = rng.permutation(n)
    where = np.repeat(home, 8)[order]
    where = np.where(rng.random(n) < _LEAVE, rng.integers(0, cohorts, n), where)
    parts = {"all": np.arange(n)} | {f"c{i}": np.flatnonzero(where == i) for i in range(cohorts)}
    odd = np.flatnonzero((np.arange(m) // EACH) % 2 == 0)  # chromosomes 1, 3, ...
    causal = np.sort(rng.choice(odd, _CAUSAL, replace=False))
    effect = rng.standard_t(4, len(causal))
    level = np.zeros(n)
    files = {name: (folder / f"{name}.bed").open("wb") for name in parts}
    for file in files.values():
        file.write(MAGIC)
    for chromosome in range(chromosomes):
        copies = _copies(rng, population, families)[order].T
        here = (causal // EACH) == chromosome
        x = copies[causal[here] % EACH].astype(float)
        x = (x - x.mean(axis=1, keepdims=True)) / x.std(axis=1, keepdims=True)
        level += effect[here] @ x
        copies[rng.random(copies.shape) < _MISSING] = 3
        for name, who in parts.items():
            files[name].write(packed(_CODES[copies[:, who]]).tobytes())
    for file in files.values():
        file.close()
    _write_people(rng, folder, parts, level, np.repeat(population, 8)[order])
    _write_variants(folder, list(parts), chromosomes)
    np.savetxt(folder / "causal.txt", causal, "%d")
    done.touch()


def _copies(rng: np.random.Generator, population: np.ndarray, families: np.ndarray) -> np.ndarray:
    """One chromosome of everybody, (people, variants): grandparents, two who marry in, their
    children, and theirs; or eight strangers."""
    base = rng.uniform(0.05, 0.5, EACH)
    shape = (1 - _FST) / _FST
    drifted = np.clip(rng.beta(base * shape, (1 - base) * shape, (3, EACH)), 0.01, 0.99)
    limit = norm.ppf(drifted).astype(np.float32)[population][:, None, None]
    noise = rng.standard_normal((len(population), 8, 2, EACH), np.float32)
    for j in range(1, EACH):  # neighbours are correlated
        noise[..., j] = 0.9 * noise[..., j - 1] + np.float32(np.sqrt(0.19)) * noise[..., j]
    people = (noise < limit).astype(np.uint8)
    a, b, c, d = (people[families, i] for i in range(4))
    child, sibling = _child(rng, a, b), _child(rng, a, b)
    more = [child, sibling, _child(rng, child, c), _child(rng, sibling, d)]
    people[families, 4:] = np.stack(more, axis=1)
    return people.sum(axis=2, dtype=np.uint8).reshape(-1, EACH)


def _child(rng: np.random.Generator, mother: np.ndarray, father: np.ndarray) -> np.ndarray:
    return np.stack([_gamete(rng, mother), _gamete(rng, father)], axis=1)


def _gamete(rng: np.random.Generator, parent: np.ndarray) -> np.ndarray:
    """One of each parent's two strands, with a crossover a chromosome on average."""
    count = len(parent)
    crossed = rng.random((count, EACH)) < 1 / EACH
    crossed[:, 0] = rng.random(count) < 0.5
    side = np.cumsum(crossed, axis=1) % 2
    return np.where(side == 0, parent[:, 0], parent[:, 1])


def _write_people(
    rng: np.random.Generator,
    folder: Path,
    parts: dict[str, np.ndarray],
    level: np.ndarray,
    population: np.ndarray,
) -> None:
    n = len(level)
    age, male = rng.normal(50, 10, n).round(2), rng.integers(0, 2, n)
    genetic = (level - level.mean()) / level.std()
    trait = np.sqrt(_HERITABILITY) * genetic + np.sqrt(1 - _HERITABILITY) * rng.normal(size=n)
    trait = (trait + 0.03 * (age - 50) + 0.2 * male + _SHIFT[population]).round(6)
    for name, who in parts.items():
        base = folder / name
        ids = [f"p{i} p{i}" for i in who]
        lines = {".fam": "", ".pheno": "FID IID QT\n", ".cov": "FID IID AGE MALE\n"}
        lines[".fam"] += "".join(f"{p} 0 0 {2 - male[i]} {trait[i]}\n" for p, i in zip(ids, who))
        lines[".pheno"] += "".join(f"{p} {trait[i]}\n" for p, i in zip(ids, who))
        lines[".cov"] += "".join(f"{p} {age[i]} {male[i]}\n" for p, i in zip(ids, who))
        for end, text in lines.items():
            base.with_suffix(end).write_text(text)


def _write_variants(folder: Path, names: list[str], chromosomes: int) -> None:
    places = ((c, j) for c in range(1, chromosomes + 1) for j in range(EACH))
    lines = "".join(
        f"{c}\tv{c}_{j}\t{j / EACH:.6f}\t{100_000 * (j + 1)}\tA\tC\n" for c, j in places
    )
    for name in names:
        (folder / f"{name}.bim").write_text(lines)
