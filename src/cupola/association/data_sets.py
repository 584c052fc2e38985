"""PLINK data sets below a folder, from which the sites of a simulation choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

MOST = 500


def data_sets(folder: Path | None) -> dict[str, dict[str, Any]]:
    """What a plan says of a cohort, by name: every .bed file with its .bim and .fam; a list of
    people beside it (BASE.NAME.keep) is a data set of its own."""
    found: dict[str, dict[str, Any]] = {}
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
            found[name] = {**files, "keep": f"{name}.keep"}
        if not keeps:
            found[base.as_posix()] = files
    return found
