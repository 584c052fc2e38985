"""Singletons to quadrupletons against PLINK 1.9: a number where it has one, NA where it has NA.

    python benchmarks/gwas/rare.py --hm3 hm3/hm3 [--sizes 120,480] [--seed 1]

Of HapMap 3 (base name of .bed, .bim, .fam, .pheno, .cov), random people and all variants, at each
of which carriers are made non-carriers until one to four copies of the rarer allele are left;
missing calls and sex chromosomes stay as they are. Cut into three cohorts, with a public list;
PLINK 1.9 has the pooled people. Three tests. 'separated': of PLINK's numbers that are NA here,
those whose carriers are all cases or all controls, with a homozygote among them. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from cupola.association import (
    Association,
    Files,
    Site,
    Study,
    StudyHost,
    Wanted,
    read_variants,
    results,
)
from cupola.association.bed import COPIES, MISSING, Bed, unpacked, write_bed
from cupola.association.files import read_people
from cupola.engines import InProcess
from cupola.federation import drive

PLINK = shutil.which("plink1.9") or shutil.which("plink")
COVARIATES = ("AGE", "BMI")
#: test -> trait, PLINK's words, its table, the columns compared.
TESTS = {
    "chi-square": ("CC", ["--assoc"], "p.assoc", ("CHISQ", "P", "OR")),
    "linear": ("QT", ["--linear", "hide-covar"], "p.assoc.linear", ("BETA", "STAT", "P")),
    "logistic": ("CC", ["--logistic", "hide-covar", "beta"], "p.assoc.logistic",
                 ("BETA", "STAT", "P")),
}  # fmt: skip


def thinned(base: Path, folder: Path, size: int, seed: int) -> tuple[Path, np.ndarray]:
    """Files of so many people of which every variant has one to four copies of its rarer allele
    left (a homozygote has two): other carriers are made non-carriers, missing calls stay. And
    copies (variants, people), -1 without a call. Variants without any carrier are left out."""
    rng = np.random.default_rng(seed)
    variants, people = (
        read_variants(base.with_suffix(".bim")),
        read_people(base.with_suffix(".fam")),
    )
    bed = Bed(base.with_suffix(".bed"), len(people), len(variants))
    chosen = np.sort(rng.permutation(len(people))[:size])
    calls = unpacked(bed.rows(np.arange(len(variants))), len(people))[:, chosen]
    copies = COPIES[calls].astype(np.int8)
    copies[calls == MISSING] = -1
    many = np.where(copies < 0, 0, copies).sum(axis=1) > (copies >= 0).sum(axis=1)
    copies[many] = np.where(copies[many] < 0, -1, 2 - copies[many])
    for i, row in enumerate(copies):
        left = 1 + i % 4
        for person in rng.permutation(np.flatnonzero(row > 0)).tolist():
            row[person] = row[person] if row[person] <= left else 0
            left -= row[person]
    rows = np.flatnonzero((copies > 0).any(axis=1))
    copies = copies[rows]
    write_bed(folder / "r.bed", np.array([3, 2, 0, MISSING], np.uint8)[copies])
    lines = [line.split() for line in base.with_suffix(".bim").read_text().splitlines()]
    kept = [[*lines[i][:4], *(lines[i][:3:-1] if many[i] else lines[i][4:])] for i in rows]
    (folder / "r.bim").write_text("".join("\t".join(line) + "\n" for line in kept))
    for end, head in ((".fam", 0), (".pheno", 1), (".cov", 1)):
        table = base.with_suffix(end).read_text().splitlines()
        known = {" ".join(line.split()[:2]): line for line in table[head:]}
        mine = [known[person] for i in chosen if (person := people.person[i]) in known]
        (folder / f"r{end}").write_text("".join(x + "\n" for x in [*table[:head], *mine]))
    return folder / "r", copies


def printed(base: Path, test: str) -> dict[str, dict[str, str]]:
    """PLINK's rows, by name."""
    trait, words, table, _ = TESTS[test]
    covar = ["--covar", "r.cov", "--covar-name", ",".join(COVARIATES)]
    subprocess.run(
        [str(PLINK), "--bfile", "r", "--pheno", "r.pheno", "--pheno-name", trait,
         *([] if test == "chi-square" else covar), *words, "--out", "p"],
        cwd=base.parent, check=True, capture_output=True,
    )  # fmt: skip
    head, *lines = [line.split() for line in (base.parent / table).read_text().splitlines()]
    return {row[1]: dict(zip(head, row)) for row in lines}


def ours(base: Path, test: str, keeps: list[Path]) -> dict[str, dict[str, float]]:
    trait = TESTS[test][0]
    covariates = () if test == "chi-square" else COVARIATES
    study = Study(test=test, trait={"column": trait}, covariates=covariates, one_sided=True,
                  people_per_column=0)  # fmt: skip
    parts = [base.with_suffix(end) for end in (".bed", ".bim", ".fam", ".pheno", ".cov")]
    wanted = Wanted(trait, covariates)
    sites = [Site(Files(k.stem, *parts, keep=k), wanted) for k in keeps]
    program = Association(study, len(sites), read_variants(base.with_suffix(".bim")))
    found = results(program, drive(program, InProcess(StudyHost(sites), quorum=1.0)))
    columns = TESTS[test][3]
    return {
        name: {column: float(found.columns[column][i]) for column in columns}
        for i, name in enumerate(found.variants.name.tolist())
    }


def compare(whole: Path, folder: Path, size: int, seed: int, test: str) -> dict[str, Any]:
    """Who has a number where; and how far numbers of both differ, in units of 1 + |number|."""
    base, copies = thinned(whole, folder, size, seed)
    people, fewest = read_people(base.with_suffix(".fam")).person, np.maximum(copies, 0).sum(axis=1)
    keeps = []
    for i, part in enumerate(np.array_split(np.arange(size), 3)):
        keeps.append(folder / f"{i}.keep")
        keeps[-1].write_text("".join(f"{people[p]}\n" for p in part))
    names = read_variants(base.with_suffix(".bim")).name
    theirs, mine = printed(base, test), ours(base, test, keeps)
    trait = _column(base.with_suffix(".pheno"), TESTS[test][0], people)
    if test != "chi-square":  # who lacks a covariate is not tested
        known = [_column(base.with_suffix(".cov"), name, people) for name in COVARIATES]
        trait[~np.isfinite(known).all(axis=0)] = np.nan
    counted: Counter[str] = Counter()
    by_copies: dict[int, Counter[str]] = {k: Counter() for k in range(1, 5)}
    worst, odd = 0.0, []
    for i, name in enumerate(names.tolist()):
        for column in TESTS[test][3]:
            told = float(theirs[name][column].replace("NA", "nan"))
            found = mine.get(name, {}).get(column, np.nan)
            what = _which(found, told)
            tested = (copies[i] > 0) & np.isfinite(trait)
            separated = len(set(trait[tested].tolist())) == 1 and (copies[i][tested] == 2).any()
            if what == "PLINK alone" and separated:
                what = "PLINK alone, separated"
            elif what in ("PLINK alone", "Cupola alone"):
                odd.append([name, column, int(fewest[i]), told, found])
            if what == "both":
                worst = max(worst, abs(found - told) / (1 + abs(told)))
            counted[what] += 1
            by_copies[int(fewest[i])][what] += 1
    return {"test": test, "people": size, "variants": len(names), "numbers": dict(counted),
            "by_copies": {k: dict(v) for k, v in by_copies.items()}, "largest_difference": worst,
            "odd": odd[:20]}  # fmt: skip


def _which(found: float, told: float) -> str:
    if np.isnan(found):
        return "neither" if np.isnan(told) else "PLINK alone"
    return "Cupola alone" if np.isnan(told) else "both"


def _column(path: Path, column: str, people: list[str]) -> np.ndarray:
    """Values of people, NaN where they are missing."""
    head, *lines = [line.split() for line in path.read_text().splitlines()]
    at = head.index(column)
    known = {" ".join(line[:2]): line[at] for line in lines}
    told = [known.get(person, "NA") for person in people]
    return np.array([float("nan" if text in ("NA", "-9") else text) for text in told])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hm3", type=Path, required=True)
    parser.add_argument("--sizes", default="120,480")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = []
    for size in map(int, given.sizes.split(",")):
        for test in TESTS:
            with tempfile.TemporaryDirectory() as folder:
                base = given.hm3.resolve()
                found.append(compare(base, Path(folder), size, given.seed, test))
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
