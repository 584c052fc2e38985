"""Chromosomes X, Y and MT in three cohorts, against PLINK 1.9 on the pooled people."""

import shutil
import subprocess

import numpy as np
import pytest
from cohorts import cut, found, people, study, write

PLINK = shutil.which("plink1.9")
TESTS = {
    "chi-square": (["--assoc"], ".assoc", ("F_A", "F_U", "CHISQ", "P", "OR")),
    "linear": (["--linear", "hide-covar"], ".assoc.linear", ("NMISS", "BETA", "SE", "STAT", "P")),
    "logistic": (
        ["--logistic", "hide-covar", "beta"],
        ".assoc.logistic",
        ("NMISS", "BETA", "SE", "STAT", "P"),
    ),
}


@pytest.mark.slow
@pytest.mark.skipif(PLINK is None, reason="needs plink1.9 (apt-get install plink1.9)")
@pytest.mark.parametrize("test", TESTS)
def test_x_y_and_mt_as_plink_prints_them(tmp_path, test):
    options, ending, columns = TESTS[test]
    data = people(77, n=600, m=60, missing=0.03, chromosomes=(1, 23, 24, 26))
    base = write(tmp_path, "all", data)
    trait = "QT" if test == "linear" else "CC"
    command = [str(PLINK), "--bfile", str(base), "--pheno", f"{base}.pheno", "--pheno-name", trait]
    covariates = [] if test == "chi-square" else ["--covar", f"{base}.cov"]
    more = ["--ci", "0.95", "--threads", "1", "--out", str(base)]
    subprocess.run([*command, *covariates, *options, *more], check=True, capture_output=True)
    head, *lines = (line.split() for line in base.with_suffix(ending).read_text().splitlines())
    printed = {row["SNP"]: row for row in (dict(zip(head, line)) for line in lines)}
    bases = cut(tmp_path, data, np.array_split(np.arange(600), 3))
    ours = found(study(test), bases, data.variants)
    assert set(ours.variants.chromosome.tolist()) == {1, 23, 24, 26}
    for i, name in enumerate(ours.variants.name.tolist()):
        row = printed[name]
        assert row["A1"] == ours.variants.a1[i]
        for column in columns:
            value, expected = ours.columns[column][i], row[column]
            if expected == "NA":
                assert np.isnan(value), (name, column)
                continue
            number = float(expected)
            digit = 10.0 ** (np.floor(np.log10(abs(number))) - 3) if number else 1e-4
            assert abs(value - number) <= 1.001 * digit, (name, column, value, number)
