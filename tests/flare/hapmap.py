"""HapMap 3 at three hospitals: every 97th variant, each with files of its own people only."""

from __future__ import annotations

import lzma
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w

from cupola.association.bed import Bed, unpacked, write_bed
from cupola.association.split import by_column

DATA = Path(os.environ.get("CUPOLA_DATA", "")) / "gwas"
THERE = (DATA / "hm3.tar.xz").is_file()
EVERY = 97
COHORT = {"bfile": "hm3", "pheno": "hm3.pheno", "cov": "hm3.cov"}  # in each hospital's folder
STUDY = {
    "test": "logistic",
    "trait": {"column": "CC"},
    "covariates": ["AGE", "SEX", "BMI", "SMOKE"],
    "sum": "masked",
    "chunk": 32,
    "checkpoint_seconds": 0.5,
    "timeout": 8.0,
}


def write_study(path: Path, folders: dict[str, Path], **changes: Any) -> Path:
    """A study file as `cupola gwas run` and `cupola submit` take it."""
    named = {name: {k: str(f / v) for k, v in COHORT.items()} for name, f in folders.items()}
    cohorts = [{"name": name, **files} for name, files in named.items()]
    path.write_text(tomli_w.dumps({**STUDY, **changes, "cohorts": cohorts}))
    return path


def cut(scratch: Path, folders: dict[str, Path]) -> None:
    """Write each hospital's files into its folder."""
    with tarfile.open(DATA / "hm3.tar.xz") as archive:
        archive.extractall(scratch, filter="data")
    base = scratch / "hm3" / "hm3"
    fam, bim = (base.with_suffix(end).read_text().splitlines() for end in (".fam", ".bim"))
    people = [_person(line) for line in fam]
    some = np.arange(0, len(bim), EVERY)
    calls = unpacked(Bed(base.with_suffix(".bed"), len(fam), len(bim)).rows(some), len(fam))
    parts = by_column(people, base.with_suffix(".cohort"), "BAL").values()
    for folder, who in zip(folders.values(), parts, strict=True):
        own = set(who)
        mine = [person in own for person in people]
        write_bed(folder / "hm3.bed", calls[:, mine])
        (folder / "hm3.bim").write_text("".join(bim[i] + "\n" for i in some))
        for end in (".fam", ".pheno", ".cov"):
            head, *rows = ["", *fam] if end == ".fam" else _lines(base.with_suffix(end))
            kept = [head] * bool(head) + [row for row in rows if _person(row) in own]
            (folder / f"hm3{end}").write_text("\n".join(kept) + "\n")


def printed() -> dict[str, dict[str, str]]:
    """What PLINK 1.9 prints for the pooled people, by variant."""
    with lzma.open(DATA / "reference" / "hm3.p1.assoc.logistic.xz", "rt") as file:
        return _table(file.read())


def table(folder: Path) -> dict[str, dict[str, str]]:
    """What a study printed."""
    return _table(next(folder.glob("*.assoc.logistic")).read_text())


def _table(text: str) -> dict[str, dict[str, str]]:
    head, *rows = (line.split() for line in text.splitlines())
    found = (dict(zip(head, row)) for row in rows)
    return {row["SNP"]: row for row in found if row["TEST"] == "ADD"}


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _person(line: str) -> str:
    return " ".join(line.split()[:2])
