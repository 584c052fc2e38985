"""A masked association study of three real cohorts with components and whole-genome regression, one
hospital killed while components are found and again while predictions are used, which it then makes
anew from what it has kept: the same tables as in one place, byte for byte."""

from __future__ import annotations

import json

import pytest
from hospitals import LEAD, SITES
from populations import CHROMOSOMES, PEOPLE, write_structured
from test_association_study import Killer, asked
from typer.testing import CliRunner

import cupola
from cupola.association.structure import predictions
from cupola.base.chain import read_result
from cupola.cli import app
from cupola.secure.durable_dict import Memory
from cupola.site.consent import study_folder

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
NAME = "structured"
TABLES = [
    f"structured.{end}"
    for end in ("assoc.logistic", "dropped.tsv", "components.tsv", "loadings.tsv")
]


def shown(*line):
    ended = CliRunner().invoke(app, [*map(str, line), "--json"])
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout[ended.stdout.index("{") :])


def test_a_hospital_is_killed_in_components_and_in_tests_with_predictions(
    trial, tmp_path, monkeypatch
):
    folders = {name: trial.folders[name] for name in SITES}
    study = write_structured(tmp_path / f"{NAME}.toml", folders)
    trial.study(NAME, study)
    written = trial.folder / "studies" / NAME
    plan, roster = written / "plan.toml", written / "roster.json"
    told = shown("site", "preview", plan, "--roster", roster, "--folder", folders["hospital-b"])
    assert not told["objections"]
    real, here = tmp_path / "real", tmp_path / "here"
    killers = [
        Killer(trial, ["hospital-b"], NAME, task, times)
        for task, times in (("gwas directions", 2), ("gwas newton", 2))
    ]
    found = shown("submit", study, "--roster", roster, "--as", trial.folders[LEAD], "--out", real)
    for killer in killers:
        killer.over = True
        assert killer.done, killer.task
    assert found["simulated"] is False

    # What folds rest on is each hospital's own; in one place all else is as it is told.
    secrets = [secret(folder) for folder in folders.values()]
    monkeypatch.setattr(predictions, "folds_of", folds_by(secrets))
    cupola.run(study, here, report=False)
    copies = [real, trial.folders["localhost"] / "runs" / NAME]
    copies += [folder / "results" / NAME for folder in folders.values()]
    for folder in copies:
        for name in TABLES:
            assert (folder / name).read_bytes() == (here / name).read_bytes(), (folder, name)
    result = read_result(real)
    assert result["tested"] > 90
    assert result["components"]["eigenvalues"][0] > 2 * result["components"]["eigenvalues"][1]
    assert result["whole_genome"]["blocks"] == CHROMOSOMES
    report = (real / "report.html").read_text()
    assert "Whole-genome regression" in report

    # Components and predictions stay at the hospitals; what was asked is what preview showed.
    for folder in folders.values():
        own = study_folder(folder, NAME) / "asked" / "components.tsv"
        assert len(own.read_text().splitlines()) == 1 + PEOPLE
        assert {task for task, _ in asked(folder, NAME)} <= {row["task"] for row in told["answers"]}
        unmasked = {task for task, to in asked(folder, NAME) if "unmasked" in to}
        assert unmasked == {"gwas propose", "gwas fingerprints"}


def secret(folder):
    memory = Memory(study_folder(folder, NAME) / "asked.jsonl")
    try:
        return bytes.fromhex(memory.get("secret"))
    finally:
        memory.close()


def folds_by(secrets):
    """As real hospitals draw them."""

    def folds_of(own, site, people, folds):  # noqa: ARG001
        return predictions.folds_under(secrets[site.index], people, folds)

    return folds_of
