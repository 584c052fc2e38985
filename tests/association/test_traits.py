"""Several traits of the same people: a run each, and what differences of their totals tell."""

import numpy as np
import pytest
from cohorts import cut, people

import cupola
from cupola.analysis.plan_file import load
from cupola.association.plan import StudyPlan
from cupola.association.trait_patterns import few_alike
from cupola.errors import PlanError


def cohorts(folder, lost):
    """Three cohorts of 60 people; `lost` of each lack LDL (NA, nan, -9) and have BMI."""
    made = people(5, n=180, m=8, missing=0)
    bases = cut(folder, made, np.array_split(np.arange(180), 3))
    for base in bases:
        rows = [line.split() for line in base.with_suffix(".pheno").read_text().splitlines()]
        codes = ["NA", "nan", "-9", "Na"]
        text = ["FID IID BMI LDL T2D"]
        for i, row in enumerate(rows[1:]):
            ldl = codes[i % 4] if i < lost else f"{float(row[3]) ** 2:.4f}"
            text.append(f"{row[0]} {row[1]} {row[3]} {ldl} {row[2]}")
        base.with_suffix(".pheno").write_text("\n".join(text) + "\n")
    return [
        {"name": b.name, "bfile": str(b), "pheno": f"{b}.pheno", "cov": f"{b}.cov"} for b in bases
    ]


def plan(given, **options):
    facts = {
        "kind": "association", "name": "lipids", "test": "linear", "cohorts": given,
        "trait": {"columns": ["BMI", "LDL"]}, "covariates": ["AGE"], "people_per_column": 0,
    }  # fmt: skip
    return {**facts, **options}


def test_each_trait_has_a_run_equal_to_one_of_its_own(tmp_path):
    given = cohorts(tmp_path, lost=7)
    runs = cupola.run_all(plan(given), tmp_path / "out")
    assert [run.folder.name for run in runs] == ["trait=BMI", "trait=LDL"]
    assert [run.result["people"]["tested"] for run in runs] == [180, 180 - 3 * 7]
    for run, column in zip(runs, ("BMI", "LDL")):
        alone = cupola.run(plan(given, trait={"column": column}), tmp_path / column, report=False)
        table = (run.folder / f"lipids.{column}.assoc.linear").read_bytes()
        assert table == (alone.folder / "lipids.assoc.linear").read_bytes()
    page = (tmp_path / "out/report.html").read_text()
    for run, column in zip(runs, ("BMI", "LDL")):
        cells = [f">trait={column}<", f"<td>{column}</td>", f">{run.result['people']['tested']}<"]
        assert all(cell in page for cell in cells)
        assert (tmp_path / f"out/trait={column}/report.html").is_file()
    assert "Accuracy" not in page
    assert [run.status for run in cupola.resume(tmp_path / "out")] == ["finished", "finished"]


def test_a_trait_that_cannot_be_tested_leaves_the_others(tmp_path):
    given = cohorts(tmp_path, lost=0)
    runs = cupola.run_all(plan(given, trait={"columns": ["T2D", "BMI"]}), tmp_path / "out")
    assert [run.status for run in runs] == ["failed", "finished"]
    assert "needs a quantitative trait" in (tmp_path / "out/report.html").read_text()


@pytest.mark.parametrize(
    ("trait", "message"),
    [
        ({"columns": ["BMI", "BMI"]}, "'BMI' stands there twice"),
        ({"columns": ["BMI"], "column": "LDL"}, "column = 'LDL' is none of columns"),
    ],
)
def test_traits_are_checked(trait, message):
    with pytest.raises(PlanError, match=message):
        load(plan([{"name": "a", "bfile": "a"}], trait=trait), of=StudyPlan)


def test_a_trait_that_a_table_lacks_is_said_at_once(tmp_path):
    given = cohorts(tmp_path, lost=0)
    with pytest.raises(Exception, match=r"no column 'HDL'; it has BMI, LDL, T2D"):
        cupola.check(plan(given, trait={"columns": ["BMI", "HDL"]}))


def test_difference_of_two_traits_is_one_persons_genotype_unless_they_take_no_part(tmp_path):
    """One person of each cohort has BMI and lacks LDL: the allele counts of the two runs, with
    the trait or without, differ by that person's genotypes."""
    given = cohorts(tmp_path, lost=1)

    def tested(least):
        runs = cupola.run_all(
            plan(given, limits={"least_cell": least}), tmp_path / str(least), report=False
        )
        return [run.result["people"] for run in runs], runs

    told, _ = tested(0)
    assert [facts["tested"] for facts in told] == [180, 177]  # the leak
    told, runs = tested(5)
    assert [facts["tested"] for facts in told] == [177, 177]
    assert [facts["loaded"] for facts in told] == [177, 177]
    kept = (runs[0].folder / "sites/c1.few_alike.tsv").read_text().splitlines()
    assert kept == ["FID\tIID", "f60\tp60"]


def test_groups_are_of_people_alike_in_all_traits():
    nan = np.nan
    bmi = np.array([20.5, 21.0, nan, nan, 25.0, 26.0, 30.0])
    t2d = np.array([1, 1, 2, 2, 2, 2, 1.0])
    loaded = np.array([True] * 6 + [False])
    key = np.column_stack([loaded, np.ones(7, bool)])
    assert not few_alike([bmi, t2d], key, 2).any()
    whole = np.array([True, False, True, True, True, True, True])  # covariates are known
    found = few_alike([bmi, t2d], np.column_stack([loaded, whole]), 2)
    assert np.flatnonzero(found).tolist() == [0, 1]
    assert np.flatnonzero(few_alike([bmi, t2d], key, 3)).tolist() == [0, 1, 2, 3, 4, 5]
