"""HapMap 3 as studies of many kinds: 2 to 14 covariates, rare cases, rare variants, six cuts.

Covariates beyond the four of the files are principal components of these genotypes. Rare variants
are made up: 1 to 30 carriers among 3,000 people.
"""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from meta import SCENARIOS, cohorts

from cupola.association.bed import COPIES, MISSING, Bed, unpacked, write_bed
from cupola.association.files import read_variants
from cupola.base.randomness import generator

OWN = ("AGE", "SEX", "BMI", "SMOKE")
COMPONENTS = tuple(f"PC{i}" for i in range(1, 11))
COVARIATES = (*OWN, *COMPONENTS)
CUTS = SCENARIOS
FEW = "few cases"  # 5 % of people


def unpack(archive: Path, folder: Path) -> Path:
    """hm3.*, with components among the covariates; the name without its ending."""
    base = folder / "hm3" / "hm3"
    if not (folder / "hm3" / "components").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as file:
            file.extractall(folder, filter="data")
        head, *rows = base.with_suffix(".cov").read_text().splitlines()
        found = _components(base, len(COMPONENTS))
        lines = [f"{row} {' '.join(f'{x:.6g}' for x in own)}" for row, own in zip(rows, found)]
        whole = [f"{head} {' '.join(COMPONENTS)}", *lines]
        base.with_suffix(".cov").write_text("\n".join(whole) + "\n")
        (folder / "hm3" / "components").touch()
    return base


def genotypes(base: Path) -> np.ndarray:
    """(variants, people) copies of a1, NaN where there is no call."""
    people = len(base.with_suffix(".fam").read_text().splitlines())
    variants = len(read_variants(base.with_suffix(".bim")))
    bed = Bed(base.with_suffix(".bed"), people, variants)
    calls = unpacked(bed.rows(slice(0, variants)), people)
    return np.where(calls == MISSING, np.nan, COPIES[calls])


def _components(base: Path, many: int) -> np.ndarray:
    copies = genotypes(base)
    mean = np.nanmean(copies, axis=1, keepdims=True)
    spread = np.nanstd(copies, axis=1, keepdims=True)
    keep = spread[:, 0] > 0
    scaled = np.nan_to_num((copies[keep] - mean[keep]) / spread[keep])
    left, size, _ = np.linalg.svd(scaled.T, full_matrices=False)
    return left[:, :many] * size[:many] / np.sqrt(len(left))


def people_of(base: Path) -> list[str]:
    return [" ".join(x.split()[:2]) for x in base.with_suffix(".fam").read_text().splitlines()]


def keeps(base: Path, folder: Path, cut: str) -> list[Path]:
    """Lists of three cohorts' people: one of six cuts, or 5 % cases overall."""
    if cut != FEW:
        return cohorts(base, cut, "BMI", folder)
    rows = [row.split() for row in base.with_suffix(".pheno").read_text().splitlines()[1:]]
    case = np.array([row[2] == "2" for row in rows])
    control = np.flatnonzero([row[2] == "1" for row in rows])
    rng = generator(1, "hapmap few cases")
    chosen = rng.permutation(np.flatnonzero(case))[: round(len(control) / 19)]
    made = []
    for i in range(3):
        who = np.concatenate([chosen[i::3], control[i::3]])
        made.append(folder / f"few.{i}.keep")
        made[-1].write_text("".join(f"{rows[j][0]} {rows[j][1]}\n" for j in sorted(who)))
    return made


def study(base: Path, lists: list[Path], test: str, many: int, **more: Any) -> dict[str, Any]:
    """A study of these cohorts. many: how many covariates."""
    files = {"bfile": str(base), "pheno": f"{base}.pheno", "cov": f"{base}.cov"}
    return {
        "name": "study", "test": test, "trait": {"column": "QT" if test == "linear" else "CC"},
        "covariates": [] if test == "chi-square" else list(COVARIATES[:many]),
        "cohorts": [{"name": f"c{i}", **files, "keep": str(k)} for i, k in enumerate(lists)],
        "variants": f"{base}.bim", "workers": 1, "one_sided": True, **more,
    }  # fmt: skip


def rare(
    folder: Path, share: float, people: int = 3000, variants: int = 600, mixed: bool = False
) -> Path:
    """Made-up people: variants with 1 to 30 carriers, a share of cases, two covariates. mixed: of 2
    to 30 carriers any number are cases, but not none and not all: the longest ways to an
    estimate."""
    base = folder / f"{'mixed' if mixed else 'rare'}-{share:g}" / "rare"
    if base.with_suffix(".cov").exists():
        return base
    base.parent.mkdir(parents=True, exist_ok=True)
    rng = generator(2, f"rare variants {share:g}")
    calls = np.full((variants, people), 3, np.uint8)
    for i, row in enumerate(calls):
        row[rng.choice(people, 1 + i % 30, replace=False)] = 2 if i % 7 else 0
    cc = 1 + (rng.permutation(people) < max(12, share * people)).astype(int)
    if mixed:
        _mix(rng, calls, cc)
    write_bed(base.with_suffix(".bed"), calls)
    base.with_suffix(".bim").write_text(
        "".join(f"1\trs{i}\t0\t{1000 * i + 1}\tA\tG\n" for i in range(variants))
    )
    ids = [f"f{i} p{i}" for i in range(people)]
    covariates = rng.normal(size=(people, 2)).round(3)
    qt = rng.normal(size=people).round(4)
    base.with_suffix(".fam").write_text("".join(f"{p} 0 0 1 {c}\n" for p, c in zip(ids, cc)))
    base.with_suffix(".pheno").write_text(
        "FID IID CC QT\n" + "".join(f"{p} {c} {q}\n" for p, c, q in zip(ids, cc, qt))
    )
    base.with_suffix(".cov").write_text(
        "FID IID AGE SEX\n" + "".join(f"{p} {a} {b}\n" for p, (a, b) in zip(ids, covariates))
    )
    return base


def _mix(rng: np.random.Generator, calls: np.ndarray, cc: np.ndarray) -> None:
    case, control = np.flatnonzero(cc == 2), np.flatnonzero(cc == 1)
    for i, row in enumerate(calls):
        row[:] = 3
        carriers = 2 + i % 29
        cases = 1 + (i // 29) * (carriers - 2) // max(1, (len(calls) - 1) // 29)
        row[rng.choice(case, min(cases, len(case), carriers - 1), replace=False)] = 2
        row[rng.choice(control, max(1, carriers - cases), replace=False)] = 2


def thirds(base: Path, folder: Path) -> list[Path]:
    """Every third person."""
    people, made = people_of(base), []
    for i in range(3):
        made.append(folder / f"{base.parent.name}.{i}.keep")
        made[-1].write_text("".join(p + "\n" for p in people[i::3]))
    return made
