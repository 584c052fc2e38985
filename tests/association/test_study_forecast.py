"""What a study is said to send is what it sends: exactly, or at most where that is said."""

import json

import numpy as np
import pytest
from cohorts import cut, people, write_bim
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.association.forecast import foresee_study
from cupola.association.plan import StudyPlan
from cupola.base.chain import read_result
from cupola.cli import app
from cupola.errors import DataError

SUMS = ["plain", "masked", {"kind": "masked", "protocol": "pairwise"}]


def _cohorts(folder, missing=0.05, chromosomes=(1, 23)):
    made = people(21, n=240, m=40, missing=missing, chromosomes=chromosomes)
    cut(folder, made, np.array_split(np.arange(240), 3))
    write_bim(folder / "public.bim", made.variants)


def _study(folder, test, **options):
    names = ("c0", "c1", "c2")
    cohorts = [{"name": n, "bfile": n, "pheno": f"{n}.pheno", "cov": f"{n}.cov"} for n in names]
    column = "QT" if test in ("linear", "mixed") else "CC"
    given = {
        "test": test, "trait": {"column": column}, "chunk": 16,
        "covariates": [] if test == "chi-square" else ["AGE", "DOSE"], "cohorts": cohorts,
        "folder": str(folder), "variants": "public.bim", "people_per_column": 10, "workers": 1,
    }  # fmt: skip
    return load({**given, **options}, of=StudyPlan)


def _sent(study, folder):
    result = cupola.run(study, folder / "run", report=False).result
    return result["bytes_down"], result["bytes_up"]


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"trend": True, "fingerprints": False},
        {"limits": {"least_cell": 9}},
    ],
)
def test_chi_square_of_a_public_list_is_foreseen_exactly(tmp_path, sums, more):
    _cohorts(tmp_path)
    study = _study(tmp_path, "chi-square", sum=sums, **more)
    told = foresee_study(study)
    assert told.at_most == ()
    assert (told.down, told.up) == _sent(study, tmp_path)


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("h2", [None, 0.3])
def test_a_mixed_model_sends_at_most_what_was_foreseen(tmp_path, sums, h2):
    _cohorts(tmp_path, chromosomes=(1, 2, 23))
    mixed = {"groups": 2, "calibration": 5, "sums": 15, "heritability": h2, "maf": 0}
    study = _study(tmp_path, "mixed", sum=sums, mixed=mixed, limits={"people": 1})
    told, (down, up) = foresee_study(study), _sent(study, tmp_path)
    assert up <= told.up
    assert down <= told.down
    assert told.usual < told.total
    assert "the mixed model may converge before 15 sums" in told.at_most
    assert told.warnings == ()
    spent = read_result(tmp_path / "run")["mixed"]["sums"]
    exact = study.model_copy(update={"mixed": study.mixed.model_copy(update={"sums": spent})})
    exact = foresee_study(exact)
    assert 0.98 * exact.up < up <= exact.up
    assert 0.95 * exact.down < down <= exact.down + 100  # '15' has a letter more than '8'


@pytest.mark.parametrize("test", ["linear", "logistic"])
@pytest.mark.parametrize("sums", SUMS)
def test_a_regression_sends_at_most_what_was_foreseen(tmp_path, test, sums):
    _cohorts(tmp_path)
    study = _study(tmp_path, test, sum=sums)
    told, (down, up) = foresee_study(study), _sent(study, tmp_path)
    assert told.at_most
    assert down <= told.down
    assert up <= told.up
    if test == "linear":  # calls are missing in every chunk, as it takes them to be
        assert up == told.up
        assert down == told.down or (sums != "plain" and down > 0.95 * told.down)
    else:
        assert told.usual < told.total


@pytest.mark.parametrize("then", ["fit", "saddle-point"])
@pytest.mark.parametrize("sums", SUMS)
def test_a_score_test_first_sends_less_and_it_is_foreseen(tmp_path, sums, then):
    _cohorts(tmp_path)
    whole = foresee_study(_study(tmp_path, "logistic", sum=sums))
    study = _study(tmp_path, "logistic", sum=sums, score={"below": 0.1, "then": then})
    told, (down, up) = foresee_study(study), _sent(study, tmp_path)
    assert any("score test" in reason for reason in told.at_most)
    assert down <= told.down < whole.down
    assert up <= told.up < whole.up


@pytest.mark.parametrize("options", [{"newton": {"firth": True}}, {"quality": {"maf": 0.4}}])
def test_iterations_and_filters_are_bounded(tmp_path, options):
    _cohorts(tmp_path, missing=0.0)
    study = _study(tmp_path, "logistic", **options)
    told, (down, up) = foresee_study(study), _sent(study, tmp_path)
    assert down < told.down
    assert up < told.up


@pytest.mark.parametrize("sums", SUMS)
def test_a_list_that_cohorts_propose_is_foreseen_exactly(tmp_path, sums):
    """What it leaves out as well, before anything is sent."""
    _cohorts(tmp_path)
    study = _study(tmp_path, "chi-square", variants=None, rare=60, sum=sums)
    told = foresee_study(study)
    assert (told.down, told.up) == _sent(study, tmp_path)
    found = json.loads((tmp_path / "run" / "result.json").read_text())
    assert found["agreement"] == told.agreement
    assert found["warnings"] == list(told.warnings) != []
    assert 0 < found["variants"] == told.variants < 40


def test_files_that_cannot_be_read_are_refused_before_anything_is_told(tmp_path):
    _cohorts(tmp_path)
    path = tmp_path / "c1.pheno"
    path.write_text(path.read_text().replace("CC", "XX"))
    with pytest.raises(DataError, match="c1"):
        foresee_study(_study(tmp_path, "chi-square"))


def test_check_prints_it(tmp_path):
    _cohorts(tmp_path)
    study = _study(tmp_path, "logistic")
    (tmp_path / "study.toml").write_text(study.to_toml())
    runner = CliRunner()
    said = runner.invoke(app, ["gwas", "check", str(tmp_path / "study.toml")])
    assert said.exit_code == 0, said.output
    assert "at most" in said.output
    found = runner.invoke(app, ["gwas", "check", str(tmp_path / "study.toml"), "--json"])
    told = foresee_study(study)
    assert json.loads(found.output)["bytes"]["total"] == told.total


def test_check_and_result_say_which_limits_are_on_and_what_they_cost(tmp_path):
    _cohorts(tmp_path)
    limits = {"least_cell": 9, "grid": 0.01, "outliers": 2.0}
    study = _study(tmp_path, "logistic", limits=limits, sum="masked")
    said = "\n".join(foresee_study(study).limits)
    result = cupola.run(study, tmp_path / "run", report=False).result
    lost = result["left_out"]["withheld by a cohort: a count below limits.least_cell"]
    assert lost > 0
    assert result["limits"] == {"effective": 0.2, **limits}
    for part in ("c0 would withhold", "multiples of 0.01", "beyond 2 times", "0.30 a person"):
        assert part in said
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert "rounded to multiples of 0.01" in ledger


def test_what_cohorts_are_told_is_foreseen(tmp_path):
    """Chi-square with a public list: to the byte, but for the list itself."""
    from dataclasses import replace

    from cupola.analysis.simulated import federation
    from cupola.association.analysis import AssociationAnalysis
    from cupola.federation import Ledger, Replay, drive
    from cupola.secure.replayed_totals import Witnessed

    _cohorts(tmp_path)
    plan = _study(tmp_path, "chi-square", sum="masked")
    analysis, entries = AssociationAnalysis(plan), []
    host = analysis.host()
    program = analysis.program(host)
    with federation(analysis, host, Ledger(entries.append), tmp_path) as reach:
        for i in range(3):
            own = replace(program, listed=None, public=True)
            reach.engine.parties(i).replay = Replay(own, witnessed=True)
        drive(program, Witnessed(reach))
    told = [entry for entry in entries if entry["kind"] == "tell" and entry["task"] != "list"]
    spent = sum(len(e["sites"]) * (e["bytes_down"] + e["bytes_up"]) for e in told)
    assert foresee_study(plan).told == spent > 0


@pytest.mark.parametrize("sums", SUMS)
@pytest.mark.parametrize("test", ["linear", "logistic", "score"])
def test_components_as_covariates_send_at_most_what_was_foreseen(tmp_path, test, sums):
    _cohorts(tmp_path)
    found = {"count": 2, "block": 2, "sums": 4, "residual": 1e-9}  # all four are made
    limits = {"people": 10, "directions": 1, "carriers": 1}
    covariates = ["AGE", "PC1-2"]
    facts = {"components": found, "limits": limits, "covariates": covariates, "sum": sums}
    if test == "score":
        test, facts = "logistic", {**facts, "score": {"below": 0.5}}
    study = _study(tmp_path, test, **facts)
    told, (down, up) = foresee_study(study), _sent(study, tmp_path)
    rows = {row["task"]: row for row in told.rows}
    assert rows["gwas directions"]["questions"] == 4
    assert down <= told.down
    assert up == told.up if test == "linear" else up <= told.up
    assert down > (0.9 if test == "linear" else 0.1) * told.down
