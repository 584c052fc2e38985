"""Result tables that other programs read: REGENIE's columns, LDSC's summary statistics, Parquet."""

from __future__ import annotations

import gzip
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from cupola.association import fit
from cupola.association.text import Column, write_table
from cupola.association.texts import Texts
from cupola.errors import PlanError

if TYPE_CHECKING:
    from cupola.association.results import Results

_DIGITS = 6
LEAST_P = -300.0  # log10: munge_sumstats drops what a float takes for 0


def write_regenie(file: IO[bytes], found: Results) -> None:
    """As `regenie --step 2` prints: effects of ALLELE1, log odds where the trait is binary."""
    v, effect, error = found.variants, found.effect, found.columns["SE"]
    failed = ~(np.isfinite(effect) & np.isfinite(error))
    columns = [
        Column("CHROM", 0, v.chromosome, 0), Column("GENPOS", 0, v.position, 0),
        Column("ID", 0, v.name), Column("ALLELE0", 0, v.a2), Column("ALLELE1", 0, v.a1),
        Column("A1FREQ", 0, found.frequency, _DIGITS), *_info(found),
        Column("N", 0, found.columns["NMISS"], 0),
        Column("TEST", 0, "ADD"), Column("BETA", 0, _or_none(effect), _DIGITS),
        Column("SE", 0, error, _DIGITS), Column("CHISQ", 0, found.statistic, _DIGITS),
        Column("LOG10P", 0, -found.log10_p + 0.0, _DIGITS),
        Column("EXTRA", 0, Texts.of(np.where(failed, "TEST_FAIL", "NA"))),
    ]  # fmt: skip
    write_table(file, [columns])


def write_ldsc(file: IO[bytes], found: Results) -> None:
    """What munge_sumstats takes, and ldsc itself: SNP, A1, A2, N, Z, P, FRQ; only variants with a
    result. P below 1e-300 is printed as that: Z tells how far below."""
    with np.errstate(invalid="ignore", divide="ignore"):
        z = np.sign(found.effect) * np.sqrt(found.statistic)
    kept = np.flatnonzero(np.isfinite(z) & np.isfinite(found.log10_p))
    v = found.variants[kept]
    p = np.power(10.0, np.maximum(found.log10_p[kept], LEAST_P))
    columns = [
        Column("SNP", 0, v.name), Column("A1", 0, v.a1), Column("A2", 0, v.a2),
        Column("N", 0, found.columns["NMISS"][kept], 0), Column("Z", 0, z[kept], _DIGITS),
        Column("P", 0, p, _DIGITS), Column("FRQ", 0, found.frequency[kept], _DIGITS),
        *_info(found, kept),
    ]  # fmt: skip
    # Without time and name: equal results are equal files.
    with gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        write_table(cast(IO[bytes], packed), [columns], separator="\t")


def _info(found: Results, kept: np.ndarray | slice = slice(None)) -> list[Column]:
    """Imputation quality, of studies of dosages."""
    info = found.columns.get("INFO")
    return [] if info is None else [Column("INFO", 0, info[kept], _DIGITS)]


def _or_none(values: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(values), values, np.nan)


def write_parquet(file: IO[bytes], found: Results) -> None:
    """Every column of the results, unrounded."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise PlanError("Parquet needs pyarrow: pip install 'cupola[gwas]'") from None
    v = found.variants
    columns = {
        "CHR": v.chromosome, "SNP": v.name.tolist(), "BP": v.position, "A1": v.a1.tolist(),
        "A2": v.a2.tolist(), "A1_FREQ": found.frequency, **found.columns,
        "NOTE": np.array(fit.MEANINGS)[found.status],
    }  # fmt: skip
    if found.cohorts is not None:
        columns["COHORTS"] = found.cohorts
    for c in found.covariates:
        columns |= {f"BETA_{c.name}": c.beta, f"SE_{c.name}": c.error}
    parquet.write_table(pyarrow.table({k: pyarrow.array(a) for k, a in columns.items()}), file)
