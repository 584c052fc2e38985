"""`cupola report --landscape`: measured once, kept in the folder, shown in the report."""

from __future__ import annotations

import json

from typer.testing import CliRunner

import cupola
from cupola.cli import app

PLAN = """
name = "around"
rounds = 1
[data]
name = "digits"
[data.partition]
kind = "iid"
sites = 2
[model]
name = "linear"
"""


def test_the_report_shows_the_loss_around_the_model(tmp_path):
    folder = tmp_path / "run"
    cupola.run(PLAN, folder, report=False)
    result = CliRunner().invoke(app, ["report", str(folder), "--landscape"])
    assert result.exit_code == 0, result.output
    held = json.loads((folder / "landscape.json").read_text("utf-8"))
    assert len(held["losses"]) == len(held["steps"]) == 11
    assert "Loss landscape" in (folder / "report.html").read_text("utf-8")
