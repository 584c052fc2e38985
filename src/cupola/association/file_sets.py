"""Which files make one data set of a cohort: genotypes, and what stands beside them by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cupola.association.cohort import Files
from cupola.association.plan import CohortFiles
from cupola.errors import DataError

#: Ending of the genotypes -> the key of a plan, and the endings of what must stand beside them.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    ".bed": ("bfile", (".bim", ".fam")),
    ".pgen": ("pfile", (".pvar", ".psam")),
    ".bgen": ("bgen", (".sample",)),
    ".vcf.gz": ("vcf", ()),
    ".vcf": ("vcf", ()),
}
_ENDINGS = sorted({*_KINDS, *(end for _, more in _KINDS.values() for end in more)}, key=len)
_NEEDED = ".bed, .bim and .fam; .pgen, .pvar and .psam; .bgen and .sample; nor .vcf or .vcf.gz"
MOST = 500  # data sets to choose from


def file_set(path: Path) -> dict[str, Any]:
    """The settings of a cohort: the genotypes that this is the name of, with or without an ending;
    or this list of people beside them (BASE.NAME.keep)."""
    if path.name.endswith(".keep"):
        whole = path.with_name(path.name.removesuffix(".keep").rpartition(".")[0])
        return {**file_set(whole), "keep": str(path)}
    base = _base(path)
    named = [end for end in _KINDS if path.name.endswith(end)]
    for end in (*named, *_KINDS):
        found = _settings(base.with_name(base.name + end), end)
        if found is not None:
            return found
    raise DataError(f"there are no genotypes {base}: neither {_NEEDED}")


def named_files(path: Path) -> Files:
    """The same, as paths."""
    return CohortFiles.model_validate({"name": "all", **file_set(path)}).files(Path())


def file_sets(folder: Path | None) -> dict[str, dict[str, Any]]:
    """All data sets below a folder: what a plan says of them, by name. A list of people beside one
    (BASE.NAME.keep) makes one of its own."""
    found: dict[str, dict[str, Any]] = {}
    if folder is None or not folder.is_dir():
        return found
    for end in _KINDS:
        for path in sorted(folder.rglob(f"*{end}")):
            settings, base = _settings(path, end), _base(path)
            name = base.relative_to(folder).as_posix()
            if settings is None or len(found) >= MOST:
                continue
            if name in found or any(other.startswith(f"{name}.") for other in found):
                name = path.relative_to(folder).as_posix()  # in a second format
            inside = {k: Path(v).relative_to(folder).as_posix() for k, v in settings.items()}
            keeps = sorted(path.parent.glob(f"{base.name}.*.keep"))
            for keep in keeps:
                people = keep.relative_to(folder).as_posix()
                label = people.removesuffix(".keep")
                found[f"{label}{end}" if label in found else label] = {**inside, "keep": people}
            if not keeps:
                found[name] = inside
    return found


def _base(path: Path) -> Path:
    """A path without the ending of one of these files."""
    ends = [end for end in _ENDINGS if path.name.endswith(end)]
    return path.with_name(path.name.removesuffix(ends[-1])) if ends else path


def _settings(path: Path, end: str) -> dict[str, str] | None:
    """Keys of a plan for genotypes; None where they, or what they need, are not there."""
    base, (key, needed) = _base(path), _KINDS[end]

    def beside(ending: str) -> Path:
        return base.with_name(base.name + ending)

    if not path.is_file() or not all(beside(ending).is_file() for ending in needed):
        return None
    found = {key: str(base if needed and key != "bgen" else path)}
    people = [ending for ending in (".psam", ".fam") if beside(ending).is_file()]
    if key == "vcf" and people:
        found["fam"] = str(beside(people[0]))
    return found | {k: str(beside(f".{k}")) for k in ("pheno", "cov") if beside(f".{k}").is_file()}
