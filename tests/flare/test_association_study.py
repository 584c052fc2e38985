"""An association study of three real cohorts: the same study file, the same digits as in one
process and as PLINK's, with one hospital killed in the middle."""

from __future__ import annotations

import json
import math
import threading
import time

import hapmap
import pytest
from hospitals import LEAD, SITES
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import contents
from cupola.base.chain import read_result
from cupola.cli import app
from cupola.engines.flare.submit import submit
from cupola.errors import DataError
from cupola.site import read_ledger
from cupola.site.consent_preview import preview
from cupola.site.coordinator import unpack

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(not hapmap.THERE, reason="set CUPOLA_DATA to the folder with gwas"),
]
TABLES = ("traits.assoc.logistic", "traits.dropped.tsv")


def asked(folder, study):
    """Tasks that a hospital answered, with where the answers went; not what it was told."""
    try:
        lines = read_ledger(folder, study)
    except DataError:
        return []
    told = "nobody: this site was told"
    return [(line["task"], line["to"]) for line in lines if "bytes" in line and line["to"] != told]


class Killer(threading.Thread):
    """Kills parties one after the other, and starts them again, each as soon as a hospital has
    answered so many more of a task since the one before: the study goes on in between."""

    def __init__(self, trial, parties, study, task, times, watched=None):
        super().__init__(daemon=True)
        self.trial, self.left, self.study, self.task = trial, list(parties), study, task
        self.times, self.watched = times, trial.folders[watched or parties[0]]
        self.done, self.over = False, False
        self.start()

    def run(self):
        seen = 0
        while not self.over and not self.done:
            count = [task for task, _ in asked(self.watched, self.study)].count(self.task)
            if count >= seen + self.times:
                party = self.left.pop(0)
                self.trial.kill(party)
                self.trial.start(party)
                seen, self.done = count, not self.left
            time.sleep(0.1)


def test_a_masked_study_of_three_hospitals_one_of_them_killed(trial, tmp_path):
    folders = {name: trial.folders[name] for name in SITES}
    hapmap.cut(tmp_path, folders)
    study = hapmap.write_study(tmp_path / "traits.toml", folders)
    trial.study("hapmap", study)
    written = trial.folder / "studies" / "hapmap"
    shown = preview(folders["hospital-b"], written / "plan.toml", written / "roster.json")
    assert not shown.objections
    killer = Killer(trial, ["hospital-b"], "hapmap", "gwas newton", 2)
    real, here = tmp_path / "real", tmp_path / "here"
    line = ["submit", str(study), "--roster", str(written / "roster.json"), "--as",
            str(trial.folders[LEAD]), "--out", str(real), "--json"]  # fmt: skip
    ended = CliRunner().invoke(app, line)
    killer.over = True
    assert ended.exit_code == 0, ended.output
    assert killer.done
    found = json.loads(ended.stdout[ended.stdout.index("{") :])
    whole = cupola.run(study, here, report=False).result
    # Equal to the last printed digit, for everybody.
    copies = [real, trial.folders["localhost"] / "runs" / "hapmap"]
    copies += [folder / "results" / "hapmap" for folder in folders.values()]
    for folder in copies:
        for name in TABLES:
            assert (folder / name).read_bytes() == (here / name).read_bytes(), (folder, name)
        assert read_result(folder)["tested"] == whole["tested"] > 100
        assert "real cohorts" in (folder / "report.html").read_text()
    assert found["simulated"] is False
    same_as_plink(hapmap.table(real))
    # Nothing but what hospitals put on the list, and hashes, left unmasked; nobody's files are
    # known.
    for folder in folders.values():
        unmasked = {task for task, to in asked(folder, "hapmap") if "unmasked" in to}
        assert unmasked == {"gwas propose", "gwas fingerprints"}
    assert str(folders["hospital-a"]) not in (copies[1] / "plan.toml").read_text()
    told = {task for task, _ in asked(folders["hospital-b"], "hapmap")}
    assert told <= {row["task"] for row in shown.answers}


def test_every_party_of_one_masked_study_is_killed_once(trial, tmp_path):
    """A hospital, the compensator and the coordinator: the tables are the same, byte by byte."""
    folders = {name: trial.folders[name] for name in SITES}
    hapmap.cut(tmp_path, folders)
    study = hapmap.write_study(tmp_path / "traits.toml", folders, chunk=16)
    job = trial.study("killed-all", study)
    parties = ["hospital-b", "university", "localhost"]
    killer = Killer(trial, parties, "killed-all", "gwas newton", 2, watched="hospital-a")
    try:
        end, packed = submit(job, trial.folders[LEAD], patience=300)
    finally:
        killer.over = True
        killer.join()
    assert killer.done, f"not killed: {killer.left}"
    assert end["state"] == "finished", end
    real, here = tmp_path / "real", tmp_path / "here"
    unpack(packed, real, contents(load(study)))
    cupola.run(study, here, report=False)
    for name in TABLES:
        assert (real / name).read_bytes() == (here / name).read_bytes(), name


def same_as_plink(ours):
    """Within 1 in the last of PLINK's four digits; statistics near zero show its single
    precision (see tests/association/test_hm3.py)."""
    printed = hapmap.printed()
    for snp, row in ours.items():
        for column in ("A1", "NMISS"):
            if row["P"] != "NA":
                assert row[column] == printed[snp][column], snp
        for column in ("OR", "STAT", "P"):
            mine, theirs = row[column], printed[snp][column]
            if "NA" in (mine, theirs) or abs(float(row["STAT"])) < 0.01:
                assert (mine == "NA") == (theirs == "NA"), (snp, column)
                continue
            digit = 10.0 ** (math.floor(math.log10(abs(float(theirs)))) - 3)
            assert abs(float(mine) - float(theirs)) <= 1.001 * digit, (snp, column)
