"""Any two choices of a study work together to the end, as `check` foresaw, or are refused before
anything is sent."""

import itertools

import numpy as np
import pytest
from cohorts import cut, people

from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import load
from cupola.analysis.session import run_all
from cupola.base.chain import read_result
from cupola.errors import PlanError

TESTS = {
    "chi-square": {"test": "chi-square", "trait": {"column": "CC"}, "covariates": []},
    "linear": {"test": "linear", "trait": {"column": "QT"}, "covariates": ["AGE"]},
    "logistic": {"test": "logistic", "trait": {"column": "CC"}, "covariates": ["AGE"]},
    "mixed": {
        "test": "mixed", "trait": {"column": "QT"}, "covariates": ["AGE"],
        "mixed": {"maf": 0.05, "groups": 5, "calibration": 4, "probes": 4, "sums": 8},
        "limits": {"people": 1},
    },
}  # fmt: skip
CHOICES = {
    "masked": {"sum": {"kind": "masked", "minimum": 3}},
    "pairwise": {"sum": {"kind": "masked", "protocol": "pairwise", "minimum": 3}},
    "processes": {"engine": {"kind": "processes"}},
    "public list": {"variants": "public.bim"},
    "least cohorts": {"least_cohorts": 3},
    "dosages": {"dosages": True},
    "sex": {"sex": True},
    "trend": {"trend": True},
    "covariate rows": {"covariate_rows": True},
    "filters": {"quality": {"maf": 0.05, "missing": 0.2, "hardy_weinberg": 1e-6}},
    "kinship": {"quality": {"kinship": 0.4}},
    "firth": {"newton": {"firth": True}},
    "score": {"score": {"below": 0.2}},
    "saddle point": {"score": {"below": 0.2, "then": "saddle-point"}},
    "least cell": {"limits": {"least_cell": 2}},
    "rounded": {"limits": {"grid": 0.01, "outliers": 3.0}},
    "components": {
        "covariates": ["AGE", "PC1-2"],
        "components": {"count": 2, "block": 3, "sums": 4, "residual": 0.05},
        "limits": {"people": 1, "directions": 5.0, "carriers": 0},
    },
    "whole genome": {
        "whole_genome": {
            "components_elsewhere": True,
            "block": 8,
            "folds": 2,
            "maf": 0.05,
            "people": 0,
            "own_people": 0,
            "carriers": 0,
            "people_per_marker": 0,
            "people_per_prediction": 0,
        },
    },
    "heterogeneity": {"heterogeneity": True},
    "quality report": {"quality": {"report": True}},
    "clump": {"clump": {"p1": 0.2, "p2": 0.5}},
    "no fingerprints": {"fingerprints": False},
    "stop at shared people": {"shared": "stop"},
    "tables": {"tables": ["plink", "ssf", "regenie", "ldsc", "parquet"]},
    "small chunks": {"chunk": 8},
}
COHORTS = 6


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cohorts")
    made = people(8, n=360, m=40, missing=0.02, chromosomes=tuple(range(1, 24)))
    cut(folder, made, np.array_split(np.arange(360), COHORTS))
    (folder / "public.bim").write_bytes((folder / "c0.bim").read_bytes())
    return folder


def whole(folder, *parts):
    """A study of these choices; tables of two are put together."""
    names = [f"c{i}" for i in range(COHORTS)]
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names]
    found = {
        "kind": "association", "cohorts": cohorts, "folder": str(folder), "people_per_column": 0,
    }  # fmt: skip
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict) and isinstance(found.get(key), dict):
                found[key] = {**found[key], **value}
            else:
                found[key] = value
    return found


PAIRS = list(itertools.combinations_with_replacement(CHOICES, 2))
#: The tests take turns: every pair in one of them here, in all by `-m long`.
IN_TURN = [(list(TESTS)[i % len(TESTS)], *pair) for i, pair in enumerate(PAIRS)]
LONG = [(test, *pair) for test in TESTS for pair in PAIRS if (test, *pair) not in IN_TURN]


@pytest.mark.slow
@pytest.mark.parametrize(("test", "one", "two"), IN_TURN)
def test_two_choices(files, tmp_path, test, one, two):
    go_together(files, tmp_path, test, one, two)


@pytest.mark.long
@pytest.mark.parametrize(("test", "one", "two"), LONG)
def test_two_choices_in_every_test(files, tmp_path, test, one, two):
    go_together(files, tmp_path, test, one, two)


def go_together(files, tmp_path, test, one, two):
    given = whole(files, TESTS[test], CHOICES[one], CHOICES[two])
    try:
        plan = load(given)
        foreseen = analysis_of(plan).check()
    except PlanError:
        return
    run_all(plan, tmp_path / "run")
    result = read_result(tmp_path / "run")
    assert result["variants"] > 0
    assert (tmp_path / "run" / "report.html").stat().st_size > 1000
    sent = result["bytes_down"] + result["bytes_up"]
    assert sent <= foreseen["bytes"]["total"]
    if not foreseen["bytes"]["at_most"]:
        assert sent == foreseen["bytes"]["total"]


@pytest.mark.parametrize("test", TESTS)
def test_every_test_is_accepted(files, test):
    load(whole(files, TESTS[test]))


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_goes_with_some_test(files, choice):
    refused = []
    for test in TESTS.values():
        try:
            load(whole(files, test, CHOICES[choice]))
        except PlanError as error:
            refused.append(str(error))
    assert len(refused) < len(TESTS), refused


@pytest.mark.slow
def test_choices_that_do_not_change_a_result(files, tmp_path):
    """However sums are made and cohorts are reached, tables are the same."""
    for test in TESTS:
        tables = set()
        for name in ("small chunks", "masked", "pairwise", "processes"):
            plan = load(whole(files, TESTS[test], CHOICES["small chunks"], CHOICES[name]))
            folder = tmp_path / f"{test}-{name}"
            run_all(plan, folder)
            (table,) = folder.glob("*.assoc*")
            tables.add(table.read_bytes())
        assert len(tables) == 1, test
