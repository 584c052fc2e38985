"""People of files that are no .fam: PLINK 2's .psam, and the .sample files that go with BGEN."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cupola.association.files import CohortError, People, Table, numbered_lines, read_table

_SEX = {"1": 1, "M": 1, "m": 1, "2": 2, "F": 2, "f": 2}
_NOT_TRAITS = {"FID", "IID", "SID", "PAT", "MAT", "SEX", "MISSING"}


def is_table_of_people(path: Path) -> bool:
    """Whether a file of people has columns with names, as traits and covariates have."""
    return path.suffix.lower() in (".psam", ".sample")


def read_named_people(path: Path) -> People | None:
    """People of a .psam or .sample file, with sex (SEX: 1 or M, 2 or F) and, as the .fam file's
    sixth column, PHENO1 or else the first trait; None of a .psam without a header: it is a .fam."""
    _, head = next(numbered_lines(path, "fam"), (0, []))
    if not head:
        raise CohortError("fam-empty", str(path), "holds no people")
    sample = path.suffix.lower() == ".sample"
    if not sample and not head[0].startswith("#"):
        return None
    if not sample and len(head) == 1:
        return _bare(path)
    table = read_table(path, "fam")
    if not table.lines:
        raise CohortError("fam-empty", str(path), "holds no people")
    person = list(table.lines)
    told = next((name for name in table.names if name.upper() == "SEX"), "")
    written = table.values.get(told, ["0"] * len(person))
    sex = np.array([_SEX.get(text, 0) for text in written])
    traits = [name for name in table.names if name.upper() not in _NOT_TRAITS]
    chosen = "PHENO1" if "PHENO1" in traits else (traits or [""])[0]
    return People(
        person,
        sex.astype(np.uint8),
        table.values.get(chosen, ["-9"] * len(person)),
        first=3 if sample else 2,
        child=_children(table) if not sample else None,
    )


def _children(table: Table) -> np.ndarray:
    """Who has a father or a mother (PAT, MAT)."""
    parents = [table.values[n] for n in table.names if n.upper() in ("PAT", "MAT")]
    return np.array([any(p[i] != "0" for p in parents) for i in range(len(table.lines))], bool)


def _bare(path: Path) -> People:
    """A list of ids below '#IID'."""
    person = [f"0 {fields[0]}" for number, fields in numbered_lines(path, "fam") if number > 1]
    if len(set(person)) < len(person):
        raise CohortError("fam-duplicate-person", str(path), "names a person twice")
    return People(person, np.zeros(len(person), np.uint8), ["-9"] * len(person), first=2)
