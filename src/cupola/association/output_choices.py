"""What a study writes, and what its tables say of it; nothing here changes what is asked."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cupola.base.renaming import warn_renamed

TableKind = Literal["plink", "ssf", "regenie", "ldsc", "parquet"]


class About(BaseModel):
    """What no file of a cohort says, for the metadata of GWAS-SSF. The GWAS catalog's words: a code
    where it has one, 'NR' (not reported) otherwise."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    trait: str | None = Field(default=None, min_length=1)
    """The trait in words; without it the column's name."""
    ontology: tuple[str, ...] = ()
    """Terms of the Experimental Factor Ontology, such as EFO_0000537."""
    build: str = Field(default="NR", min_length=1)
    """Genome assembly of all positions: GRCh37, GRCh38."""
    ancestry: tuple[str, ...] = ("NR",)
    """Ancestry categories of the people, as the catalog names them: European, East Asian."""
    genotyping: tuple[str, ...] = ()
    """Genotyping technology, such as 'Genome-wide genotyping array'."""


def with_old_keys(given: dict[str, Any]) -> dict[str, Any]:
    """`ssf = true` and `parquet = true` stood for tables once."""
    told = {key: given[key] for key in ("ssf", "parquet") if isinstance(given.get(key), bool)}
    if not told:
        return given
    wanted = [key for key, on in told.items() if on]
    if wanted:
        old = ", ".join(f"{key} = true" for key in wanted)
        warn_renamed(old, f"tables = {['plink', *wanted]}")
    rest = {key: value for key, value in given.items() if key not in told}
    tables = list(rest.get("tables", ["plink"]))
    more = [key for key in wanted if key not in tables]
    return {**rest, "tables": [*tables, *more]} if more else rest
