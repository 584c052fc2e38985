"""Cochran's Q and I^2 from sums of the cohorts' own effects: PLINK's --meta-analysis."""

import shutil
import subprocess

import numpy as np
import pytest
from cohorts import cut, write, write_bim
from linked import linked
from replayed import record, repeat, saved_and_loaded

import cupola
from cupola.association import heterogeneity
from cupola.association.compare import read_results
from cupola.errors import PlanError

COHORTS = ("c0", "c1", "c2", "c3")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Four cohorts; at the last, the first effect has the other sign, and a variant is rare."""
    folder = tmp_path_factory.mktemp("cohorts")
    made = linked(5, n=800, m=60)
    where = np.array_split(np.arange(800), 4)
    told = np.where(made.copies[40] == 3, 0, made.copies[40])
    other = 1 + (told[where[3]] == 0)
    other[::3] = 3 - other[::3]
    made.cc[where[3]] = other
    made.qt[where[3]] -= 1.5 * told[where[3]]
    made.copies[10, where[3]] = 0
    made.copies[10, where[3][0]] = 1
    cut(folder, made, where)
    write_bim(folder / "public.bim", made.variants)
    write(folder, "all", made)
    return folder


def _plan(folder, test, **options):
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in COHORTS]
    return {
        "test": test, "trait": {"column": "QT" if test == "linear" else "CC"}, "sum": "masked",
        "covariates": [] if test == "chi-square" else ["AGE"], "cohorts": cohorts, "name": "t",
        "folder": str(folder), "variants": "public.bim", "heterogeneity": True,
        "ambiguous_sex": True, **options,
    }  # fmt: skip


def _meta(folder, test, out):
    """PLINK's table of each cohort, and its meta-analysis of them; rows by name."""
    trait = ["--pheno-name", "QT" if test == "linear" else "CC"]
    kind = {
        "chi-square": ["--assoc"], "linear": ["--linear", "hide-covar"],
        "logistic": ["--logistic", "hide-covar"],
    }[test]  # fmt: skip
    if test != "chi-square":
        trait += ["--covar-name", "AGE"]
    tables = []
    for name in COHORTS:
        files = ["--bfile", folder / name, "--pheno", folder / f"{name}.pheno"]
        files += ["--covar", folder / f"{name}.cov"] if test != "chi-square" else []
        how = ["--ci", "0.95", "--allow-no-sex", "--keep-allele-order"]  # A1 is one for all
        command = ["plink1.9", *files, *trait, *kind, *how, "--out", out / name]
        subprocess.run(command, check=True, capture_output=True)
        tables += sorted(out.glob(f"{name}.assoc*"))
    how = ["+", "qt"] if test == "linear" else []
    command = ["plink1.9", "--meta-analysis", *tables, *how, "--out", out / "meta"]
    subprocess.run(command, check=True, capture_output=True)
    head, *lines = [line.split() for line in (out / "meta.meta").read_text().splitlines()]
    return {row[head.index("SNP")]: dict(zip(head, row)) for row in lines}


@pytest.mark.skipif(shutil.which("plink1.9") is None, reason="needs plink1.9")
@pytest.mark.parametrize("test", ["chi-square", "linear", "logistic"])
def test_q_and_i_are_plinks_of_the_cohorts_own_tables(data, tmp_path, test):
    done = cupola.run(_plan(data, test), tmp_path / "out").result
    ours = read_results(tmp_path / "out" / done.files[0])
    theirs = _meta(data, test, tmp_path)
    compared, several = 0, 0
    for fields in ours.fields:
        row = dict(zip(ours.head, fields))
        other = theirs.get(row["SNP"])
        if row["SNP"] == "rs10":
            assert row["EFFECTS"] == "3"  # one carrier in the last cohort is no estimate
            continue
        assert other is not None
        assert row["EFFECTS"] == other["N"] == "4"
        # PLINK reads tables of four digits.
        assert float(row["Q"]) == pytest.approx(float(other["Q"]), rel=0.02, abs=2e-4)
        assert float(row["I"]) == pytest.approx(float(other["I"]), abs=0.3)
        compared += 1
        several += float(row["I"]) > 50
    assert compared == 59
    assert several >= 3


def test_masked_sums_tell_what_plain_ones_do(data, tmp_path):
    from pyarrow import parquet

    found = []
    for kind in ("plain", "masked"):
        plan = _plan(data, "logistic", sum=kind, tables=["parquet"])
        cupola.run(plan, tmp_path / kind, report=False)
        found.append(parquet.read_table(tmp_path / kind / "t.parquet").to_pydict())
    for name in ("COCHRAN_Q", "Q", "I", "EFFECTS"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-6, abs=1e-7, nan_ok=True)


def test_nothing_is_added_up_where_two_of_three_have_an_effect(tmp_path):
    made = linked(6, n=450, m=20)
    made.copies[4, 300:] = 0
    bases = cut(tmp_path, made, np.array_split(np.arange(450), 3))
    write_bim(tmp_path / "public.bim", made.variants)
    assert len(bases) == 3
    plan = _plan(tmp_path, "linear")
    plan["cohorts"] = plan["cohorts"][:3]
    done = cupola.run(plan, tmp_path / "out").result
    rows = read_results(tmp_path / "out" / done.files[0])
    q, cohorts = ([f[rows.head.index(n)] for f in rows.fields] for n in ("Q", "EFFECTS"))
    assert (q[4], cohorts[4]) == ("NA", "2")
    assert "NA" not in q[:4] + q[5:]
    ledger = (tmp_path / "out/ledger.jsonl").read_text()
    assert "three numbers about four of the other two" in ledger


def test_who_repeats_the_study_asks_the_same(tmp_path):
    from cohorts import study

    bases = cut(tmp_path, linked(5, n=300, m=40), np.array_split(np.arange(300), 3))
    for test in ("chi-square", "linear"):
        chosen = study(test, heterogeneity=True, chunk=16, clump={"p1": 0.01, "p2": 0.1})
        asked, replies = record(chosen, bases)
        assert repeat(chosen, 3, replies, between=saved_and_loaded) == asked


def test_of_so_many_cohorts_a_total_is_at_least():
    assert [heterogeneity.least(n, 1) for n in (2, 3, 4, 9)] == [2, 3, 3, 3]
    assert [heterogeneity.least(9, apart) for apart in (2, 3, 5)] == [3, 3, 5]


def test_effects_of_fewer_cohorts_than_a_masked_total_is_of_are_not_added_up(data, tmp_path):
    """Of variant 10 three of four cohorts have an effect; the fourth adds zeros, and so the total
    would be of three, though cohorts have agreed to totals of four."""
    told = {}
    for minimum in (3, 4):
        plan = _plan(data, "linear", sum={"kind": "masked", "minimum": minimum})
        done = cupola.run(plan, tmp_path / str(minimum), report=False).result
        rows = read_results(tmp_path / str(minimum) / done.files[0])
        q, cohorts = ([f[rows.head.index(n)] for f in rows.fields] for n in ("Q", "EFFECTS"))
        assert cohorts[10] == "3"
        told[minimum] = q
    assert told[3][10] != "NA"
    assert told[4] == [*told[3][:10], "NA", *told[3][11:]]


def test_a_plan_is_checked_and_foreseen(data):
    with pytest.raises(PlanError, match="between cohorts: there is one"):
        cupola.load(_plan(data, "linear", sum="plain", cohorts=[{"name": "c0", "bfile": "c0"}]))
    told = cupola.check(_plan(data, "linear"))
    tasks = {row["task"] for row in told["bytes"]["rows"]}
    assert {"gwas own fits", "gwas own effects"} <= tasks
