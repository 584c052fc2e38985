"""HapMap 3 cut into cohorts, against what PLINK prints for the pooled people."""

import functools
import lzma
import operator
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from cohorts import carry_out
from cohorts import study as make_study

from cupola.association import Files, Site, Wanted, read_variants, results
from cupola.association.split import by_column

DATA = Path(os.environ.get("CUPOLA_DATA", "")) / "gwas"
pytestmark = pytest.mark.skipif(
    not (DATA / "hm3.tar.xz").is_file(), reason="set CUPOLA_DATA to the folder with gwas/hm3.tar.xz"
)
COVARIATES = ("AGE", "SEX", "BMI", "SMOKE")
TABLES = {
    "chi-square": ("hm3.p1.assoc", ("F_A", "F_U", "CHISQ", "P", "OR")),
    "linear": ("hm3.p1.assoc.linear", ("NMISS", "BETA", "SE", "STAT", "P")),
    "logistic": ("hm3.p1.beta.assoc.logistic", ("NMISS", "BETA", "SE", "STAT", "P")),
}
PLINK2 = {"linear": "hm3.p2.QT.glm.linear", "logistic": "hm3.p2.nofirth.CC.glm.logistic"}


@pytest.fixture(scope="module")
def hm3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hm3")
    with tarfile.open(DATA / "hm3.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "hm3" / "hm3"


def _study(test, **options):
    covariates = () if test == "chi-square" else COVARIATES
    return make_study(test, covariates=covariates, people_per_column=20, **options)


def _cohorts(study, base, lists, folder):
    wanted = Wanted(study.trait.column, study.covariates)
    ends = (".bed", ".bim", ".fam", ".pheno", ".cov")
    parts = [base.with_suffix(end) for end in ends]
    sites = []
    for i, people in enumerate(lists):
        keep = folder / f"{i}.keep"
        keep.write_text("".join(p + "\n" for p in people))
        sites.append(Site(Files(str(i), *parts, keep=keep), wanted))
    return sites


def _balanced(base):
    people = [" ".join(x.split()[:2]) for x in base.with_suffix(".fam").read_text().splitlines()]
    return list(by_column(people, base.with_suffix(".cohort"), "BAL").values())


def _printed(name):
    with lzma.open(DATA / "reference" / f"{name}.xz", "rt") as file:
        head = file.readline().split()
        wanted = (line for line in file if "TEST" not in head or "ADD" in line)
        rows = [dict(zip(head, line.split())) for line in wanted]
    key = "SNP" if "SNP" in head else "ID"
    return {row[key]: row for row in rows if row.get("TEST", "ADD") == "ADD"}


def _ours(test, base, lists, folder, listed, masked=False):
    study = _study(test)
    program, state, _ = carry_out(study, _cohorts(study, base, lists, folder), listed, masked)
    return results(program, state)


def _agree_with_plink(test, found):
    """Every number within 1 in the last of PLINK 1.9's four digits, and PLINK 2's to 1e-5.

    Not held to it: logistic statistics so near to zero that PLINK 1.9's single precision shows,
    some 1e-6 of a standard error (gives how many there are); and PLINK 2's logistic standard errors
    where calls are missing and the number of people is not a multiple of four. There it counts
    what the variant before left in the rest of a vector: asked for such a variant alone, it prints
    ours.
    """
    name, columns = TABLES[test]
    printed = _printed(name)
    second = _printed(PLINK2[test]) if test in PLINK2 else {}
    near, tested = [], np.nanmax(found.columns["NMISS"]) if second else 0
    for i, snp in enumerate(found.variants.name.tolist()):
        row = printed[snp]
        assert row["A1"] == found.variants.a1[i]
        for column in columns:
            value = found.columns[column][i]
            if row[column] == "NA":
                assert np.isnan(value), (snp, column)
                continue
            expected = float(row[column])
            digit = 10.0 ** (np.floor(np.log10(abs(expected))) - 3) if expected else 1e-4
            if np.isnan(value) and column == "NMISS":  # nobody is counted where nothing is tested
                assert row["P"] == "NA"
            elif abs(value - expected) > 1.001 * digit:
                near.append((snp, column, value, expected))
        other = second.get(snp)
        if other is not None and other["A1"] == found.variants.a1[i]:
            beta = np.log(float(other["OR"])) if test == "logistic" else float(other["BETA"])
            error = float(other["LOG(OR)_SE" if test == "logistic" else "SE"])
            z = float(other["Z_STAT" if test == "logistic" else "T_STAT"])
            # OR is printed with six digits, which bounds what its logarithm can tell.
            assert found.columns["BETA"][i] == pytest.approx(beta, rel=1e-5, abs=1e-5), snp
            same = found.columns["SE"][i] == pytest.approx(error, rel=1e-5)
            if not same:
                assert test == "logistic", snp
                people = found.columns["NMISS"][i]
                if people % 4 == 0 or people == tested:  # four rare variants, 1.13e-5 at most
                    assert found.columns["SE"][i] == pytest.approx(error, rel=1.2e-5), snp
                continue
            assert found.columns["STAT"][i] == pytest.approx(z, rel=2e-5, abs=2e-5), snp
            # What 2e-5 of the statistic does to p, which falls as exp(-z^2 / 2).
            least = 2e-5 * (2 + z * z)
            assert found.columns["P"][i] == pytest.approx(float(other["P"]), rel=least), snp
    for snp, column, value, expected in near:
        assert test == "logistic", (snp, column, value, expected)
        assert column in ("BETA", "STAT"), (snp, column, value, expected)
        i = found.variants.name.tolist().index(snp)
        unit = found.columns["SE"][i] if column == "BETA" else 1.0
        assert abs(value - expected) < 2e-6 * unit, (snp, column, value, expected)
        assert abs(found.columns["STAT"][i]) < 0.01
    return len({snp for snp, *_ in near})


@pytest.mark.parametrize("test", TABLES)
def test_three_balanced_cohorts_masked_on_some_variants(hm3, tmp_path, test):
    whole = read_variants(hm3.with_suffix(".bim"))
    some = whole[np.arange(0, len(whole), 97)]
    found = _ours(test, hm3, _balanced(hm3), tmp_path, some, masked=True)
    assert len(found.variants) == len(some)
    assert _agree_with_plink(test, found) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("test", TABLES)
@pytest.mark.parametrize(("cohorts", "masked"), [(3, True), (3, False), (2, False), (7, True)])
def test_every_variant(hm3, tmp_path, test, cohorts, masked):
    whole = read_variants(hm3.with_suffix(".bim"))
    people = [p for part in _balanced(hm3) for p in part]
    lists = _balanced(hm3) if cohorts == 3 else [people[i::cohorts] for i in range(cohorts)]
    found = _ours(test, hm3, lists, tmp_path, whole, masked)
    assert len(found.variants) == len(whole)
    assert _agree_with_plink(test, found) <= 30


@pytest.mark.slow
@pytest.mark.parametrize("test", TABLES)
@pytest.mark.parametrize("split", ["mod", "sev"])
def test_imbalanced_cohorts_equal_their_pooled_people(hm3, tmp_path, test, split):
    whole = read_variants(hm3.with_suffix(".bim"))
    lists = [
        [
            " ".join(x.split()[:2])
            for x in (DATA / f"splits/hm3_{split}.{i}.keep").read_text().splitlines()
        ]
        for i in range(3)
    ]
    ours = _ours(test, hm3, lists, tmp_path, whole, masked=True)
    (tmp_path / "pooled").mkdir()
    pooled = _ours(
        test, hm3, [functools.reduce(operator.iadd, lists, [])], tmp_path / "pooled", whole
    )
    assert np.array_equal(ours.variants.a1, pooled.variants.a1)
    for name in ("P", "SE"):
        np.testing.assert_allclose(ours.columns[name], pooled.columns[name], rtol=1e-5)
