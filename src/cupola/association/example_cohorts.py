"""Cohorts of people who do not exist, to try a study with: PLINK's files, and the study's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cupola.association.bed import write_bed
from cupola.errors import PlanError

COHORTS = ("north", "south", "west")
STUDY = "study.toml"
_PLAN = """\
kind = "association"
name = "example"
test = "logistic"          # people with a disease and people without it
covariates = ["AGE"]       # a column of the .cov files
sum = "masked"             # nobody sees a single cohort's numbers
quality = { maf = 0.01, missing = 0.05, hardy_weinberg = 1e-6 }
"""


def write_example(folder: Path) -> Path:
    """Three cohorts and a study of them; the study's file."""
    path = folder / STUDY
    if path.exists():
        raise PlanError(f"{path} is there already; choose another folder")
    simulated_cohorts(folder)
    lines = [f'\n[[cohorts]]\nname = "{n}"\nbfile = "{n}"\ncov = "{n}.cov"\n' for n in COHORTS]
    path.write_text(_PLAN + "".join(lines), encoding="utf-8")
    return path


def simulated_cohorts(folder: Path, variants: int = 4000, people: int = 900, seed: int = 7) -> None:
    """Three cohorts of people who do not exist, with a handful of variants that matter."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    chromosome = np.sort(rng.integers(1, 23, variants))
    sizes = np.unique(chromosome, return_counts=True)[1].tolist()
    position = np.concatenate([np.sort(rng.integers(1, 120_000_000, n)) for n in sizes])
    rate = rng.uniform(0.05, 0.5, variants)
    copies = rng.binomial(2, rate[:, None], (variants, people)).astype(np.uint8)
    age = rng.normal(55, 9, people).round(1)
    causes = rng.choice(variants, 6, replace=False)
    risk = (copies[causes].T - 2 * rate[causes]) @ rng.choice([-1.0, 1.0], 6) + 0.03 * (age - 55)
    case = 1 + (rng.random(people) < 1 / (1 + np.exp(-risk))).astype(int)
    sex = rng.integers(1, 3, people)
    calls = np.array([3, 2, 0], np.uint8)[copies]
    listing = "".join(
        f"{c}\tsim{i}\t0\t{p}\tA\tG\n" for i, (c, p) in enumerate(zip(chromosome, position))
    )
    for name, part in zip(COHORTS, np.array_split(rng.permutation(people), len(COHORTS))):
        base = folder / name
        write_bed(base.with_suffix(".bed"), calls[:, part])
        base.with_suffix(".bim").write_text(listing, "utf-8")
        base.with_suffix(".fam").write_text(
            "".join(f"f{i} p{i} 0 0 {sex[i]} {case[i]}\n" for i in part), "utf-8"
        )
        base.with_suffix(".cov").write_text(
            "FID IID AGE\n" + "".join(f"f{i} p{i} {age[i]}\n" for i in part), "utf-8"
        )
