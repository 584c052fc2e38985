"""Imbalanced cohorts: a federated study against meta-analysis, as the paper's figure 4."""

import sys
from pathlib import Path

import pytest
from test_hm3 import COVARIATES, DATA, hm3, pytestmark  # noqa: F401 (a fixture and a mark)

import cupola
from cupola.association.compare import compare_results, read_results

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gwas"))
import peers


@pytest.mark.slow
@pytest.mark.skipif(peers.PLINK is None, reason="needs plink1.9 (apt-get install plink1.9)")
@pytest.mark.parametrize(("split", "at_most"), [("bal", 1.0), ("sev", 0.7)])
def test_meta_analysis_loses_where_cohorts_differ(hm3, tmp_path, split, at_most):  # noqa: F811
    keeps = [DATA / f"splits/hm3_{split}.{i}.keep" for i in range(3)]
    files = {"bfile": str(hm3), "pheno": str(hm3) + ".pheno", "cov": str(hm3) + ".cov"}
    study = {
        "test": "logistic", "trait": {"column": "CC"}, "covariates": list(COVARIATES),
        "variants": str(hm3) + ".bim", "sum": "masked", "ambiguous_sex": True, "workers": 1,
        "cohorts": [{"name": str(i), "keep": str(k), **files} for i, k in enumerate(keeps)],
    }  # fmt: skip
    cupola.run(study, tmp_path / "ours", report=False)
    everybody = DATA / f"splits/hm3_{split}.all.keep"
    pooled = read_results(peers.plink(hm3, everybody, tmp_path / "pooled", COVARIATES))
    ours = compare_results(read_results(tmp_path / "ours/study.assoc.logistic"), pooled)
    assert ours["pearson"] > 1 - 1e-6
    assert ours["spearman"] > 1 - 1e-6
    tables = [peers.plink(hm3, keep, tmp_path / f"{i}", COVARIATES) for i, keep in enumerate(keeps)]
    found = peers.plink_meta(tables, tmp_path)
    if peers.GWAMA is not None:
        found |= peers.gwama(tables, hm3, tmp_path)
    for name, table in found.items():
        r = compare_results(table, pooled)["pearson"]
        print(f"{split} {name}: Pearson r {r:.3f}; federated {ours['pearson']:.8f}")
        assert r < min(at_most, ours["pearson"]), name
