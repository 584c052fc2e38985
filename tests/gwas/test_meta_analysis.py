"""Imbalanced cohorts: a federated study against meta-analysis, as the paper's figure 4."""

import shutil
import subprocess

import pytest
from test_hm3 import COVARIATES, DATA, hm3, pytestmark  # noqa: F401 (a fixture and a mark)

from cupola.gwas.compare import compare_results, read_results
from cupola.plan.study_run import run_study

PLINK = shutil.which("plink1.9")
GWAMA = shutil.which("GWAMA") or shutil.which("gwama")


def _plink(base, keep, out):
    command = [
        PLINK, "--silent", "--bfile", str(base), "--keep", str(keep), "--autosome", "--ci", "0.95",
        "--pheno", str(base.with_suffix(".pheno")), "--pheno-name", "CC", "--allow-no-sex",
        "--covar", str(base.with_suffix(".cov")), "--covar-name", ",".join(COVARIATES),
        "--logistic", "hide-covar", "--threads", "1", "--keep-allele-order", "--out", str(out),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return out.with_suffix(".assoc.logistic")


def _plink_meta(tables, folder):
    command = [PLINK, "--silent", "--meta-analysis", *map(str, tables), "--out", str(folder / "m")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "m.meta"


def _gwama(tables, base, folder, *options):
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
    command = [GWAMA, "-i", "in.txt", "-o", "g", *options]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    return folder / "g.out"


@pytest.mark.slow
@pytest.mark.skipif(PLINK is None, reason="needs plink1.9 (apt-get install plink1.9)")
@pytest.mark.parametrize(("split", "at_most"), [("bal", 1.0), ("sev", 0.7)])
def test_meta_analysis_loses_where_cohorts_differ(hm3, tmp_path, split, at_most):  # noqa: F811
    keeps = [DATA / f"splits/hm3_{split}.{i}.keep" for i in range(3)]
    files = {"bfile": str(hm3), "pheno": str(hm3) + ".pheno", "cov": str(hm3) + ".cov"}
    study = {
        "test": "logistic", "trait": {"column": "CC"}, "covariates": list(COVARIATES),
        "variants": str(hm3) + ".bim", "sum": "masked", "ambiguous_sex": True, "workers": 1,
        "cohorts": [{"name": str(i), "keep": str(k), **files} for i, k in enumerate(keeps)],
    }  # fmt: skip
    run_study(study, tmp_path / "ours", report=False)
    pooled = read_results(_plink(hm3, DATA / f"splits/hm3_{split}.all.keep", tmp_path / "pooled"))
    ours = compare_results(read_results(tmp_path / "ours/study.assoc.logistic"), pooled)
    assert ours["pearson"] > 1 - 1e-6
    assert ours["spearman"] > 1 - 1e-6
    tables = [_plink(hm3, keep, tmp_path / f"{i}") for i, keep in enumerate(keeps)]
    meta = _plink_meta(tables, tmp_path)
    found = {
        name: read_results(meta, column) for name, column in (("fixed", "P"), ("random", "P(R)"))
    }
    if GWAMA is not None:
        found["gwama fixed"] = read_results(_gwama(tables, hm3, tmp_path))
    for name, table in found.items():
        r = compare_results(table, pooled)["pearson"]
        print(f"{split} {name}: Pearson r {r:.3f}; federated {ours['pearson']:.8f}")
        assert r < min(at_most, ours["pearson"]), name
