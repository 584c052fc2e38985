"""Meta-analysis by others: PLINK 1.9 per cohort, then PLINK's and GWAMA's pooling of summaries."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cupola.association.compare import Table, read_results

PLINK = shutil.which("plink1.9")
GWAMA = shutil.which("GWAMA") or shutil.which("gwama")


def plink(base: Path, keep: Path, out: Path, covariates: Sequence[str]) -> Path:
    """Logistic regression of trait CC on the autosomes of some people."""
    command = [
        str(PLINK), "--silent", "--bfile", str(base), "--keep", str(keep), "--autosome",
        "--pheno", str(base.with_suffix(".pheno")), "--pheno-name", "CC", "--allow-no-sex",
        "--covar", str(base.with_suffix(".cov")), "--covar-name", ",".join(covariates),
        "--logistic", "hide-covar", "--ci", "0.95", "--threads", "1", "--keep-allele-order",
        "--out", str(out),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return out.with_name(out.name + ".assoc.logistic")


def plink_meta(tables: Sequence[Path], folder: Path) -> dict[str, Table]:
    """Fixed and random effects."""
    command = [str(PLINK), "--silent", "--meta-analysis", *map(str, tables)]
    subprocess.run([*command, "--out", str(folder / "m")], check=True, capture_output=True)
    path = folder / "m.meta"
    return {"PLINK, fixed": read_results(path, "P"), "PLINK, random": read_results(path, "P(R)")}


def gwama(tables: Sequence[Path], base: Path, folder: Path) -> dict[str, Table]:
    """Fixed and random effects."""
    lines = (line.split() for line in base.with_suffix(".bim").read_text().splitlines())
    alleles = {fields[1]: fields[4:6] for fields in lines}
    inputs = []
    for i, table in enumerate(tables):
        found = read_results(table)
        at = [found.head.index(name) for name in ("SNP", "A1", "OR", "L95", "U95")]
        rows = ["MARKERNAME EA NEA OR OR_95L OR_95U"]
        for fields in found.fields:
            name, a1, *effect = (fields[j] for j in at)
            if "NA" not in effect:
                other = next(a for a in alleles[name] if a != a1)
                rows.append(" ".join([name, a1, other, *effect]))
        inputs.append(folder / f"{i}.txt")
        inputs[-1].write_text("\n".join(rows) + "\n")
    (folder / "in.txt").write_text("".join(f"{path}\n" for path in inputs))
    found_tables = {}
    for name, option in (("fixed", []), ("random", ["-r"])):
        command = [str(GWAMA), "-i", "in.txt", "-o", f"g-{name}", *option]
        subprocess.run(command, check=True, capture_output=True, cwd=folder)
        found_tables[f"GWAMA, {name}"] = read_results(folder / f"g-{name}.out")
    return found_tables
