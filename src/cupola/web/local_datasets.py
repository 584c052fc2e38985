"""PLINK data sets on this machine, from which sites of a demonstration choose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

MOST = 500


@dataclass(frozen=True)
class DataSet:
    """files: of the cohort, relative to the data folder."""

    name: str
    files: dict[str, Any]


def data_sets(folder: Path | None) -> dict[str, DataSet]:
    """Every .bed file with its .bim and .fam below the folder; a list of people beside it
    (BASE.NAME.keep) is a data set of its own."""
    found: dict[str, DataSet] = {}
    if folder is None or not folder.is_dir():
        return found
    for bed in sorted(folder.rglob("*.bed"))[:MOST]:
        if not all(bed.with_suffix(end).is_file() for end in (".bim", ".fam")):
            continue
        base = bed.relative_to(folder).with_suffix("")
        files: dict[str, Any] = {"bfile": base.as_posix()}
        for key, end in (("pheno", ".pheno"), ("cov", ".cov")):
            if bed.with_suffix(end).is_file():
                files[key] = base.with_suffix(end).as_posix()
        keeps = sorted(bed.parent.glob(f"{bed.stem}.*.keep"))
        for keep in keeps:
            name = keep.relative_to(folder).as_posix().removesuffix(".keep")
            found[name] = DataSet(name, {**files, "keep": f"{name}.keep"})
        if not keeps:
            found[base.as_posix()] = DataSet(base.as_posix(), files)
    return found
