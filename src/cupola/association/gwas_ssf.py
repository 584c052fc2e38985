"""GWAS-SSF, the GWAS catalog's standard for summary statistics (Hayhurst et al. 2022): a table, and
its metadata as YAML.

The table holds what the standard allows: variants with an estimate, on chromosomes 1 to 25, with
alleles of A, C, G and T. Which allele is the reference genome's is not known here, so `ref_allele`
is left out.
"""

from __future__ import annotations

import hashlib
import json
import re
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any

import numpy as np

import cupola
from cupola.association.files import MT, XY, X
from cupola.association.tables import normal_quantile
from cupola.association.text import Column, write_table
from cupola.association.texts import Texts

if TYPE_CHECKING:
    from cupola.association.plan import StudyPlan
    from cupola.association.results import Results

VERSION = "GWAS-SSF v1.0"
_BASES = frozenset("ACGT")
_DIGITS = 8
_NO_VALUE = "#NA"


def fit_for_ssf(found: Results) -> np.ndarray:
    """Rows that the standard allows."""
    v, c = found.variants, found.columns
    fine = np.isfinite(found.effect) & np.isfinite(c["SE"]) & np.isfinite(found.log10_p)
    fine &= (v.chromosome >= 1) & (v.chromosome <= MT)
    letters = [
        _BASES.issuperset(a) and _BASES.issuperset(b) for a, b in zip(v.a1.tolist(), v.a2.tolist())
    ]
    return np.flatnonzero(fine & np.array(letters, bool))


def write_table_of(file: IO[bytes], found: Results, test: str, confidence: float) -> int:
    """The table; gives how many variants it leaves out."""
    kept = fit_for_ssf(found)
    v, c = found.variants[kept], {name: column[kept] for name, column in found.columns.items()}
    names = v.name.tolist()
    number = v.chromosome.astype(np.int64)
    number[v.chromosome == XY] = X
    number[v.chromosome == MT] = 25  # the standard counts X, Y, MT
    columns = [
        Column("chromosome", 0, number, 0),
        Column("base_pair_location", 0, v.position, 0),
        Column("effect_allele", 0, v.a1),
        Column("other_allele", 0, v.a2),
        *_effect(c, test),
        Column("effect_allele_frequency", 0, found.frequency[kept], _DIGITS),
        Column("neg_log_10_p_value", 0, -found.log10_p[kept] + 0.0, _DIGITS),
        Column("variant_id", 0, Texts.of([re.sub(r"\W", "_", name, flags=re.A) for name in names])),
        Column("rsid", 0, Texts.of([_rs(name) for name in names])),
        *_interval(c, test, confidence),
        *_imputed(c),
        Column("n", 0, c["NMISS"], 0),
    ]
    write_table(file, [columns], separator="\t")
    return len(found.variants) - len(kept)


def _effect(c: dict[str, np.ndarray], test: str) -> list[Column]:
    name, values = ("odds_ratio", c["OR"]) if test == "chi-square" else ("beta", c["BETA"])
    return [Column(name, 0, values, _DIGITS), Column("standard_error", 0, c["SE"], _DIGITS)]


def _interval(c: dict[str, np.ndarray], test: str, confidence: float) -> list[Column]:
    """The standard's are of 95 %."""
    if confidence != 0.95:
        return []
    wide = normal_quantile(confidence) * c["SE"]
    ends = [c["BETA"] + wide, c["BETA"] - wide] if test != "chi-square" else [
        np.exp(np.log(c["OR"]) + wide), np.exp(np.log(c["OR"]) - wide)]  # fmt: skip
    names = ("ci_upper", "ci_lower")
    return [Column(name, 0, end, _DIGITS) for name, end in zip(names, ends)]


def _imputed(c: dict[str, np.ndarray]) -> list[Column]:
    """The standard's quality of imputation is between 0 and 1; MACH's may be a little more."""
    return [Column("info", 0, np.clip(c["INFO"], 0, 1), _DIGITS)] if "INFO" in c else []


def _rs(name: str) -> str:
    return name if re.fullmatch(r"rs[0-9]+", name) else _NO_VALUE


def metadata(
    plan: StudyPlan, people: dict[str, Any], table: str, checksum: str, left_out: int
) -> str:
    """The YAML file beside the table, with the standard's field names. people: of result.json."""
    about, binary = plan.about, not plan.quantitative
    sample: dict[str, Any] = {"sample_size": people["tested"]}
    if binary:
        cases = people["cases"]
        sample |= {"case_control_study": True, "case_count": cases,
                   "control_count": people["tested"] - cases}  # fmt: skip
    else:
        sample["case_control_study"] = False
    sample["sample_ancestry_category"] = list(about.ancestry)
    males, loaded = people["males"], people["loaded"]
    notes = f"{len(plan.cohorts)} cohorts, analysed together by sums ({plan.test})"
    if left_out:
        notes += f"; {left_out:,} variants without an estimate, or that the format has no place for"
    fields: dict[str, Any] = {
        "date_metadata_last_modified": datetime.now(UTC).date(),
        "author_notes": notes,
        "trait_description": [about.trait or plan.trait.column or "phenotype of the .fam file"],
        "ontology_mapping": list(about.ontology),
        "genome_assembly": about.build,
        "coordinate_system": "1-based",
        "genotyping_technology": list(about.genotyping),
        "samples": [sample],
        "sex": "combined" if 0 < males < loaded else "M" if males else "NR",
        "data_file_name": table,
        "file_type": VERSION,
        "data_file_md5sum": checksum,
        "analysis_software": f"cupola {cupola.__version__}",
        "adjusted_covariates": list(plan.columns),
        "minor_allele_freq_lower_limit": plan.quality.maf or None,
        "is_harmonised": False,
        "is_sorted": True,
    }
    return "".join(_yaml(key, value) for key, value in fields.items() if value not in (None, []))


def _yaml(key: str, value: Any) -> str:
    """A field. JSON's scalars and lists are YAML's; a date stands bare."""
    if isinstance(value, list) and isinstance(value[0], dict):
        lines = [f"{k}: {json.dumps(v)}" for k, v in value[0].items()]
        return f"{key}:\n- " + "\n  ".join(lines) + "\n"
    plain = isinstance(value, (str, int, float, list))
    return f"{key}: {json.dumps(value, ensure_ascii=False) if plain else value}\n"


def checksum_of(file: IO[bytes]) -> str:
    """The table's MD5, which the standard asks for: against damage, not against malice."""
    file.seek(0)
    found = hashlib.md5(usedforsecurity=False)
    while block := file.read(1 << 20):
        found.update(block)
    return found.hexdigest()
