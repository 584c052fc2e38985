"""A user's own analysis (examples/pooled_regression.py) at three real hospitals, with consent and
masked sums; one of them is killed before it is asked."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hospitals import LEAD, SITES
from sklearn.datasets import load_diabetes
from typer.testing import CliRunner

import cupola
from cupola.cli import app
from cupola.site import read_ledger
from cupola.site.consent_preview import preview

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
FEATURES = ("age", "sex", "bmi", "bp")


def write_patients(folders):
    """Each hospital's table, of its own patients; gives all of them."""
    known = load_diabetes()
    x = known.data[:, [known.feature_names.index(name) for name in FEATURES]]
    for i, folder in enumerate(folders):
        rows = np.column_stack([x, known.target])[i::3]
        head = ",".join([*FEATURES, "progression"])
        np.savetxt(folder / "patients.csv", rows, delimiter=",", header=head, comments="")
    return x, known.target


@pytest.mark.parametrize("kind", ["masked", "plain"])
def test_a_regression_at_three_hospitals(trial, tmp_path, kind):
    folders = [trial.folders[name] for name in SITES]
    x, y = write_patients(folders)
    plan = tmp_path / "plan.toml"
    lines = ['kind = "pooled_regression:PooledRegression"', f'name = "r-{kind}"', "hospitals = 3"]
    plan.write_text("\n".join([*lines, f'sum = "{kind}"', ""]))
    trial.study(f"regression-{kind}", plan, "patients")
    written = trial.folder / "studies" / f"regression-{kind}"
    shown = preview(folders[0], written / "plan.toml", written / "roster.json", "patients")
    assert not shown.objections
    assert [row["task"] for row in shown.answers] == ["moments"]
    trial.kill("hospital-b")
    trial.start("hospital-b")
    trial.wait_until_connected()
    real = tmp_path / "real"
    line = ["submit", str(plan), "--roster", str(written / "roster.json"), "--as",
            str(trial.folders[LEAD]), "--out", str(real), "--json"]  # fmt: skip
    ended = CliRunner().invoke(app, line)
    assert ended.exit_code == 0, ended.output
    found = json.loads(ended.stdout[ended.stdout.index("{") :])
    pooled = np.linalg.lstsq(np.column_stack([np.ones(len(x)), x]), y, rcond=None)[0]
    assert np.abs(np.array([*found["beta"].values()]) / pooled - 1).max() < 1e-6
    assert not found["simulated"]
    assert "progression" not in (real / "ledger.jsonl").read_text()
    assert "real sites" in (real / "report.html").read_text()
    for folder in folders:
        tasks = {
            line["task"] for line in read_ledger(folder, f"regression-{kind}") if "task" in line
        }
        assert "moments" in tasks
        assert cupola.Run.open(folder / "results" / f"regression-{kind}").result.beta
