"""Components of HapMap 3, eleven populations as eleven masked cohorts, against the exact
decomposition of the pooled people and PLINK."""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest

import cupola
from cupola.association.bed import COPIES, MISSING, Bed, unpacked
from cupola.association.files import read_variants

DATA = Path(os.environ.get("CUPOLA_DATA", "")) / "gwas"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (DATA / "hm3.tar.xz").is_file(),
        reason="set CUPOLA_DATA to the folder with gwas/hm3.tar.xz",
    ),
]
PLINK, PLINK2 = shutil.which("plink1.9"), shutil.which("plink2")
LIMITS = {"people": 40, "directions": 10, "carriers": 0}  # the smallest population has 48 people


@pytest.fixture(scope="module")
def hm3(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hm3")
    with tarfile.open(DATA / "hm3.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "hm3"


def _lists(hm3, column):
    rows = [line.split() for line in (hm3 / "hm3.cohort").read_text().splitlines()]
    at = rows[0].index(column)
    found = {}
    for row in rows[1:]:
        found.setdefault(row[at], []).append(" ".join(row[:2]))
    return found


def _cohorts(hm3, column="POP", reverse=False):
    made = []
    for name, people in sorted(_lists(hm3, column).items(), reverse=reverse):
        (hm3 / f"{column}.{name}.keep").write_text("\n".join(people) + "\n")
        made.append({"name": f"P{name}", "bfile": "hm3", "pheno": "hm3.pheno", "cov": "hm3.cov",
                     "keep": f"{column}.{name}.keep"})  # fmt: skip
    return made


def _scores(hm3, folder):
    """Of everybody, in the order of the .fam file."""
    found = {}
    for table in (folder / "sites").glob("*.components.tsv"):
        for line in table.read_text().splitlines()[1:]:
            fid, iid, *values = line.split()
            found[fid, iid] = [float(value) for value in values]
    people = [tuple(x.split()[:2]) for x in (hm3 / "hm3.fam").read_text().splitlines()]
    return np.array([found[person] for person in people])


def _exact(hm3, whole_only, base="hm3"):
    variants = read_variants(hm3 / f"{base}.bim")
    bed = Bed(hm3 / f"{base}.bed", 957, len(variants))
    call = unpacked(bed.rows(slice(0, len(variants))), 957)
    copies = np.where(call == MISSING, np.nan, COPIES[call])
    p = np.nanmean(copies, axis=1) / 2
    keep = (variants.chromosome <= 22) & (np.minimum(p, 1 - p) >= 0.05)
    if whole_only:
        keep &= ~np.isnan(copies).any(axis=1)
    z = np.nan_to_num((copies - 2 * p[:, None]) / np.sqrt(2 * p * (1 - p))[:, None])[keep]
    values, vectors = np.linalg.eigh(z.T @ z / keep.sum())
    return values[::-1][:10], vectors[:, ::-1][:, :10], int(keep.sum())


def _alike(a, b):
    return np.abs((a * b).sum(axis=0)) / np.sqrt((a**2).sum(axis=0) * (b**2).sum(axis=0))


def _run(hm3, folder, column="POP", reverse=False, **options):
    plan = {"kind": "pca", "name": "hm3", "sum": "masked", "limits": LIMITS, "folder": str(hm3),
            "cohorts": _cohorts(hm3, column, reverse), **options}  # fmt: skip
    return cupola.run(plan, folder, report=False).result


def _asked(folder, task):
    return sum(f'"{task}"' in line for line in (folder / "ledger.jsonl").read_text().splitlines())


@pytest.mark.parametrize(("column", "reverse"), [("POP", False), ("POP", True), ("BAL", False)])
def test_ten_components_are_exact_however_people_are_cut(hm3, tmp_path, column, reverse):
    result = _run(hm3, tmp_path / "run", column, reverse)
    values, vectors, markers = _exact(hm3, False)
    found = result["components"]
    assert found["markers"] == markers == 13867
    assert _alike(_scores(hm3, tmp_path / "run"), vectors).min() >= 0.99999
    np.testing.assert_allclose(found["eigenvalues"], values, rtol=1e-5)
    # Sums of directions and of scores; before them one count, of cohorts that withhold a marker.
    sums = _asked(tmp_path / "run", "gwas directions") + _asked(tmp_path / "run", "gwas scores")
    assert sums == found["sums"] + 1 <= 12
    assert all(found["determined"])


@pytest.mark.skipif(PLINK2 is None, reason="plink2 is not installed")
def test_components_are_plink2s(hm3, tmp_path):
    # PLINK treats missing calls otherwise: without them all ten, with them the first six.
    for whole_only, first in ((True, 10), (False, 6)):
        base = hm3 / "hm3"
        more = ["--geno", "0"] if whole_only else []
        subprocess.run(
            [PLINK2, "--bfile", base, "--autosome", "--maf", "0.05", *more, "--pca", "10",
             "--nonfounders", "--out", tmp_path / "p2"], check=True, capture_output=True,
        )  # fmt: skip
        lines = [line.split() for line in (tmp_path / "p2.eigenvec").read_text().splitlines()]
        head = lines[0]
        by_iid = {row[head.index("IID")]: row[head.index("PC1") :] for row in lines[1:]}
        people = [x.split()[1] for x in (hm3 / "hm3.fam").read_text().splitlines()]
        theirs = np.array([by_iid[iid] for iid in people], float)
        quality = {"missing": 0.0} if whole_only else {}
        result = _run(hm3, tmp_path / f"run{whole_only}", quality=quality)
        ours = _scores(hm3, tmp_path / f"run{whole_only}")
        assert _alike(ours, theirs)[:first].min() >= 0.9999
        assert result["components"]["sums"] <= 12


@pytest.mark.skipif(PLINK is None, reason="plink1.9 is not installed")
@pytest.mark.parametrize("test", ["linear", "logistic"])
def test_components_as_covariates_are_plinks_covar(hm3, tmp_path, test):
    """PLINK is given the same scores as a table: the same digits."""
    plan = {"kind": "association", "test": test, "name": "hm3", "sum": "masked", "limits": LIMITS,
            "trait": {"column": "QT" if test == "linear" else "CC"}, "components": {},
            "covariates": ["AGE", "PC1-10"], "folder": str(hm3),
            "cohorts": _cohorts(hm3, "BAL")}  # fmt: skip
    cupola.run(plan, tmp_path / "run", report=False)
    scores = _scores(hm3, tmp_path / "run")
    rows = (line.split() for line in (hm3 / "hm3.cov").read_text().splitlines())
    ages = {(fid, iid): age for fid, iid, age, *_ in rows}
    lines = ["FID IID AGE " + " ".join(f"PC{i + 1}" for i in range(10))]
    for line, row in zip((hm3 / "hm3.fam").read_text().splitlines(), scores.tolist()):
        person = tuple(line.split()[:2])
        lines.append(" ".join([*person, ages[person], *map(repr, row)]))
    (tmp_path / "covar").write_text("\n".join(lines) + "\n")
    subprocess.run(
        [PLINK, "--bfile", hm3 / "hm3", "--pheno", hm3 / "hm3.pheno", "--pheno-name",
         plan["trait"]["column"], "--covar", tmp_path / "covar", f"--{test}",
         "hide-covar", "--allow-no-sex", "--out",
         tmp_path / "p1"], check=True, capture_output=True,
    )  # fmt: skip
    ours = _table(tmp_path / "run" / f"hm3.assoc.{test}")
    theirs = _table(tmp_path / f"p1.assoc.{test}")
    compared, name = 0, "OR" if test == "logistic" else "BETA"
    for snp, row in theirs.items():
        if row["P"] == "NA" or snp not in ours or int(row["CHR"]) > 22:
            continue
        mine = ours[snp]
        sign = 1 if mine["A1"] == row["A1"] else -1
        effect, theirs_effect = float(mine[name]), row[name]
        effect = effect**sign if test == "logistic" else effect * sign
        pairs = ((float(mine["STAT"]) * sign, row["STAT"]), (effect, theirs_effect),
                 (float(mine["P"]), row["P"]))  # fmt: skip
        assert all(abs(a - float(b)) <= 2e-3 * max(0.01, abs(float(b))) for a, b in pairs), snp
        compared += 1
    assert compared > 13_000


def _table(path):
    head, *rows = [line.split() for line in path.read_text().splitlines()]
    found = [dict(zip(head, row)) for row in rows]
    return {row["SNP"]: row for row in found}
