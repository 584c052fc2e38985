"""Variants with a handful of carriers: a number where there is an estimate, and nowhere else."""

import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cohorts import cut, found, people, study, write

from cupola.association import fit

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "gwas"))
import rare

PLINK = shutil.which("plink1.9") or shutil.which("plink")
HM3 = Path(os.environ.get("CUPOLA_DATA", "")) / "gwas" / "hm3.tar.xz"


def _carried(share, n=300, m=240):
    """Variants with 1 to 4 carriers (the last with 2, all homozygous), and a share of cases."""
    data = people(41, n=n, m=m, missing=0)
    rng = np.random.default_rng(1)
    data.copies[:] = 0
    for i, row in enumerate(data.copies):
        row[rng.choice(n, 1 + i % 4, replace=False)] = 1 if i < m - 20 else 2
    data.cc = 1.0 + (np.arange(n) < share * n)
    order = rng.permutation(n)
    return replace(data, cc=data.cc[order], age=data.age[order])


def _plink(folder, data):
    write(folder, "all", data)
    subprocess.run(
        [PLINK, "--bfile", "all", "--pheno", "all.pheno", "--pheno-name", "CC", "--covar",
         "all.cov", "--logistic", "hide-covar", "--out", "all"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    rows = [line.split() for line in (folder / "all.assoc.logistic").read_text().splitlines()[1:]]
    return {row[1]: float("nan" if row[7] == "NA" else row[7]) for row in rows}


@pytest.mark.skipif(PLINK is None, reason="needs PLINK 1.9")
@pytest.mark.parametrize("share", [0.5, 0.05])
def test_numbers_are_where_plink_has_them(tmp_path, share):
    data = _carried(share)
    expected = _plink(tmp_path, data)
    bases = cut(tmp_path, data, np.array_split(np.arange(len(data)), 3))
    ours = found(study("logistic", one_sided=True), bases, data.variants)
    case, numbers = data.cc == 2, 0
    for name, statistic, carried in zip(ours.variants.name, ours.columns["STAT"], data.copies):
        if np.isnan(expected[name]):
            assert np.isnan(statistic), name
        elif len(set(case[carried > 0])) == 1:
            # PLINK knows a separated variant by steps of 1; if all its carriers have two copies
            # they are 0.5, and it prints where it happens to stand.
            assert (carried[carried > 0] == 2).all()
            assert abs(expected[name]) < 0.05
            assert np.isnan(statistic), name
        else:
            assert statistic == pytest.approx(expected[name], rel=2e-3, abs=2e-3), name
            numbers += 1
    assert numbers > 20


def test_firths_estimate_is_found_for_one_to_four_carriers(tmp_path):
    data = _carried(0.05, m=48)
    bases = cut(tmp_path, data, np.array_split(np.arange(len(data)), 3))
    chosen = study("logistic", one_sided=True, newton={"firth": True})
    ours = found(chosen, bases, data.variants)
    assert set(ours.status.tolist()) == {fit.OK, fit.FIRTH}
    for i in np.flatnonzero(ours.status == fit.FIRTH)[::6]:
        x = np.column_stack([np.ones(len(data)), data.age, data.dose, data.copies[i]])
        sign = 1 if ours.variants.a1[i] == data.variants.a1[i] else -1
        beta = _penalised(x, data.cc - 1)[-1]
        assert sign * ours.columns["BETA"][i] == pytest.approx(beta, rel=1e-3, abs=1e-3)


def _penalised(x, y):
    """Where the penalised score is zero, by half steps."""
    beta = np.zeros(x.shape[1])
    for _ in range(300):
        p = 1 / (1 + np.exp(-x @ beta))
        inverse = np.linalg.inv((x.T * p * (1 - p)) @ x)
        leverage = p * (1 - p) * np.einsum("ni,ij,nj->n", x, inverse, x)
        step = inverse @ x.T @ (y - p + leverage * (0.5 - p))
        beta += 0.5 * step * min(1.0, 1 / np.abs(step).max())
    return beta


def test_a_covariate_that_separates_the_trait_leaves_nothing_to_test(tmp_path):
    data = people(42, missing=0)
    data.dose = np.where(data.cc == 2, 5.0, 1.0)
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    ours = found(study("logistic"), bases, data.variants)
    assert np.isnan(ours.columns["P"]).all()


def test_where_nobody_tested_carries_an_allele_that_is_said(tmp_path):
    data = people(43, m=4, chromosomes=(23,))
    data.copies[2] = 0
    data.copies[2, 5], data.cc[5] = 2, np.nan
    data.copies[2, 7] = 3
    bases = cut(tmp_path, data, np.array_split(np.arange(90), 3))
    assert found(study("logistic"), bases, data.variants).status[2] == fit.MONOMORPHIC


@pytest.mark.slow
@pytest.mark.skipif(PLINK is None or not HM3.is_file(), reason="needs PLINK 1.9 and HapMap 3")
def test_one_to_four_copies_of_every_variant_of_hapmap(tmp_path):
    """A number where PLINK 1.9 has one, and nowhere else; but for separated variants with a
    homozygote among the carriers, where it prints where it happens to stand."""
    with tarfile.open(HM3) as archive:
        archive.extractall(tmp_path, filter="data")
    for test in rare.TESTS:
        found = rare.compare(tmp_path / "hm3" / "hm3", tmp_path, 120, 1, test)
        assert found["variants"] > 14000
        assert found["odd"] == []
        assert found["largest_difference"] < 3e-4  # PLINK prints four digits
        alone = found["numbers"].pop("PLINK alone, separated", 0)
        assert found["numbers"].keys() == {"both", "neither"}
        assert (alone > 0) == (test == "logistic")
        assert alone < 0.1 * 3 * found["variants"]
