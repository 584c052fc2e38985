"""`cupola report --landscape`: measured once, kept in the folder, shown in the report."""

from __future__ import annotations

import json
import re

from typer.testing import CliRunner

import cupola
from cupola.cli import app
from cupola.report import open_run
from cupola.report.landscape import landscape_section

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


def test_shades_span_the_losses_that_are_there(tmp_path):
    """A flat landscape far above zero still shows its shape: lightest is the least loss."""
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "history.jsonl").write_text("")
    losses = [[2.5, 2.4, 2.6], [2.45, 2.3, 2.4], [2.5, 2.4, 2.55]]
    held = {"steps": [-1, 0, 1], "losses": losses, "samples": 9}
    (tmp_path / "landscape.json").write_text(json.dumps(held))
    html = landscape_section(open_run(tmp_path))
    shades = re.findall(r'fill-opacity="([\d.]+)"', html)
    assert (len(shades), shades[4], max(shades)) == (9, "0.06", "1.00")
    assert shades.index("1.00") == 8  # first direction upwards: its last step is the first row
    assert "Shades go from 2.3 (lightest) to 2.6" in html
    assert "line s0" in html
    assert "line s1" in html
