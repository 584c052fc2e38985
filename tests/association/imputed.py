"""Imputed genotypes, made and written by plink2: a .pgen file, and cohorts of it in all formats."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

has_plink2 = pytest.mark.skipif(shutil.which("plink2") is None, reason="plink2 is not installed")


def plink2(*arguments, out):
    """Its output prefix."""
    found = subprocess.run(
        ["plink2", *map(str, arguments), "--threads", "1", "--out", str(out)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout + found.stderr
    return out


def make(folder, people=600, variants=60, seed=7, dosages=0.6, missing=0.03):
    """all.pgen with traits and covariates; positions are 1000, 2000, ..."""
    folder = Path(folder)
    kind = ["acgt", *([f"dosage-freq={dosages}"] if dosages else [])]
    base = plink2("--dummy", people, variants, missing, *kind, "--seed", seed, "--make-pgen",
                  out=folder / "all")  # fmt: skip
    lines = base.with_suffix(".pvar").read_text().splitlines()
    rows = [line.split("\t") for line in lines if not line.startswith("#")]
    base.with_suffix(".pvar").write_text(
        "#CHROM\tPOS\tID\tREF\tALT\n"
        + "".join(f"1\t{1000 * i}\t{r[2]}\t{r[3]}\t{r[4]}\n" for i, r in enumerate(rows, 1))
    )
    rng = np.random.default_rng(seed)
    sex = rng.integers(1, 3, people)
    age, dose = rng.normal(50, 10, people).round(1), rng.normal(0, 2, people).round(3)
    qt = (0.03 * age + 0.2 * dose + rng.normal(size=people)).round(4)
    cc = 1 + (rng.random(people) < 1 / (1 + np.exp(-0.05 * (age - 50)))).astype(int)
    ids = [f"per{i}" for i in range(people)]
    write(base.with_suffix(".psam"), "#IID\tSEX", zip(ids, sex))
    write(base.with_suffix(".pheno"), "#IID\tCC\tQT", zip(ids, cc, qt))
    write(base.with_suffix(".cov"), "#IID\tAGE\tDOSE", zip(ids, age, dose))
    return base


def write(path, head, rows):
    path.write_text(head + "\n" + "".join("\t".join(map(str, r)) + "\n" for r in rows))


def cohorts(base, people=600):
    """Three cohorts in three formats: what a plan says of each."""
    folder, found = base.parent, []
    parts = np.array_split(np.arange(people), 3)
    forms = (
        ("a", ["--make-pgen"], {"pfile": "a"}),
        ("b", ["--export", "bgen-1.2", "bits=16"], {"bgen": "b.bgen"}),
        ("c", ["--export", "vcf", "bgz", "vcf-dosage=DS"], {"vcf": "c.vcf.gz", "fam": "c.psam"}),
    )
    for (name, form, files), part in zip(forms, parts):
        keep = folder / f"{name}.people"
        keep.write_text("#IID\n" + "".join(f"per{i}\n" for i in part))
        plink2("--pfile", base, "--keep", keep, *form, out=folder / name)
        if name == "c":
            plink2("--pfile", base, "--keep", keep, "--make-just-psam", out=folder / name)
        found.append({"name": name, **files, "pheno": "all.pheno", "cov": "all.cov"})
    return found


def one_file(base, form, people=600):
    """Three cohorts of the same file, by lists of people; and what plink2 calls that file."""
    whole, source = {"pfile": "all"}, ["--pfile", base]
    if form == "bgen":
        plink2("--pfile", base, "--export", "bgen-1.2", "bits=8", "ref-first", out=base)
        sample = base.with_suffix(".sample")
        source = ["--bgen", base.with_suffix(".bgen"), "ref-first", "--sample", sample]
        whole = {"bgen": "all.bgen"}
    if form == "vcf":
        plink2("--pfile", base, "--export", "vcf", "vcf-dosage=DS", out=base)
        path, sexes = base.with_suffix(".vcf"), base.with_suffix(".psam")
        source = ["--vcf", path, "dosage=DS", "--psam", sexes]
        whole = {"vcf": "all.vcf", "fam": "all.psam"}
    tables, given = {"pheno": "all.pheno", "cov": "all.cov"}, []
    for name, part in zip("xyz", np.array_split(np.arange(people), 3)):
        (base.parent / f"{name}.keep").write_text("".join(f"per{i}\n" for i in part))
        given.append({"name": name, **whole, **tables, "keep": f"{name}.keep"})
    return given, source


def glm(base, trait, *more, source=None):
    """plink2's regression on everybody: rows by variant, of the genotype. source: the genotypes, if
    not base.pgen."""
    out = plink2(
        *(source or ["--pfile", base]),
        "--pheno", base.with_suffix(".pheno"), "--pheno-name", trait,
        "--covar", base.with_suffix(".cov"), "--glm", "hide-covar", *more,
        out=base.parent / f"glm{trait}",
    )  # fmt: skip
    (path,) = base.parent.glob(f"{out.name}.{trait}.glm.*[a-z]")
    lines = [line.split("\t") for line in path.read_text().splitlines()]
    return {row[2]: dict(zip(lines[0], row)) for row in lines[1:]}
