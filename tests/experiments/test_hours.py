"""How long a table will take: trials by kind, what is finished, and the commands."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from cupola.analysis.plan_file import load
from cupola.cli import app
from cupola.training import Local
from reproduce import find_table, hours, jobs, reproduce
from reproduce.hours import Forecast, Pace, forecast, kind_of, seen, trial

PLAN = """
name = "tiny"
rounds = 4
model = "linear"
data = {name = "digits", partition = {kind = "iid", sites = 4}}
local = {lr = 0.1, batch_size = 64}
"""

TABLE = """
caption = "Rates"
source = "Someone 2020, Table 1"
plan = "base.toml"
seeds = [1, 2]

[[row]]
name = "slow"
settings = ["local.lr=0.05"]

[[row]]
name = "fast"
settings = ["local.lr=0.2", "rounds=6"]

[[row]]
name = "often"
settings = ["local.epochs=2"]
"""


@pytest.fixture
def plans(tmp_path):
    folder = tmp_path / "experiments" / "tiny"
    folder.mkdir(parents=True)
    (folder / "base.toml").write_text(PLAN)
    (folder / "table.toml").write_text(TABLE)
    return tmp_path / "experiments"


def test_samples_of_a_round():
    sizes = np.array([100, 10])
    assert seen(Local(epochs=3), sizes) == 330
    assert seen(Local(work="gradient"), sizes) == 110
    assert seen(Local(work="batches", batches=5, batch_size=32), sizes) == 5 * 42


def test_kinds_of_runs():
    one = kind_of(load(PLAN))
    same = ["seed=7", "rounds=9", "local.lr=0.3", "name=other"]
    assert kind_of(load(PLAN, same)) == one
    assert kind_of(load(PLAN, ["local.batch_size=8"])) != one
    assert kind_of(load(PLAN, ["model.name=mlp"])) != one


def test_every_kind_is_tried_once_and_finished_runs_count_by_their_own_pace(
    plans, tmp_path, monkeypatch
):
    tried = []

    def fixed(plan):
        tried.append(plan.local.epochs)
        return Pace(10.0 * plan.local.epochs, 1.0)

    monkeypatch.setattr(hours, "trial", fixed)
    table, out = find_table("tiny", plans), tmp_path / "out"
    work = jobs(table, out, (1, 2))
    assert forecast(work, out) == Forecast(6, 0, 2 * (4 * 11 + 6 * 11 + 4 * 21))
    assert tried == [1, 2]
    assert forecast(work, out).seconds == 388
    assert tried == [1, 2]  # remembered in the folder
    reproduce(table, out, (1,))
    written = {job.folder / "history.jsonl": b"" for job in work[:3]}
    for path in written:  # as if a round had taken 100 seconds
        written[path] = path.read_bytes()
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        text = "".join(json.dumps({**r, "seconds": 100.0 * r["round"]}) + "\n" for r in lines)
        path.write_text(text)
    assert forecast(work, out) == Forecast(6, 3, 1400.0)
    for path, whole in written.items():
        path.write_bytes(whole)
    reproduce(table, out)
    assert str(forecast(work, out)) == "6 runs, all done"


def test_what_is_said():
    assert str(Forecast(36, 12, 5040.0)) == "36 runs, 12 done; about 84 minutes for the other 24"
    assert str(Forecast(3, 0, 9000.0, 1)) == (
        "3 runs, 0 done; about 2.5 hours for the other 3, without 1 that could not be tried"
    )
    assert Pace(2.0, 1.0).seconds(load(PLAN, ["twin=true", "evaluation.every=2"]), 4) == 20


@pytest.mark.parametrize(
    "settings",
    [
        ["recipe=dp-sgd", "privacy.epsilon=1", "local.work=epochs"],
        ["recipe=dp-ftrl", "privacy.epsilon=8"],
        ["sum=masked", "sum.minimum=3"],
        ["engine.kind=processes"],
        ["evaluation.on=both", "data.partition.test=0.2"],
    ],
)
def test_a_trial_knows_every_kind_of_plan(settings, monkeypatch):
    clock = iter(np.arange(0.0, 1000.0, 2.0))
    monkeypatch.setattr(hours, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    plan = load(PLAN, settings)
    pace = trial(plan)
    assert pace.round == pytest.approx(2 * 1438 / 512, rel=0.3)  # two seconds for 512 of 1,438
    assert pace.evaluation > 0


def test_a_trial_that_fails_says_why_and_is_tried_again(plans, tmp_path):
    wrong = load(PLAN, ["participation.kind=fraction", "participation.count=9"])
    job = replace(jobs(find_table("tiny", plans), tmp_path, [1])[0], plan=wrong)
    for _ in range(2):
        said: list[str] = []
        found = forecast([job], tmp_path, said.append)
        assert (found.runs, found.unknown, found.seconds) == (1, 1, 0.0)
        assert said[0] == f"trying {job.label}"
        assert said[1].startswith("cannot be tried: participation.count")


def test_commands(plans, tmp_path):
    out = tmp_path / "out"
    command = ["reproduce", "tiny", "--plans", str(plans), "--seeds", "1", "-o", str(out)]
    said = CliRunner().invoke(app, [*command, "--hours"])
    assert said.exit_code == 0, said.output
    assert said.stdout.startswith("tiny: 3 runs, 0 done; about ")
    assert [p.name for p in out.iterdir()] == ["hours.json"]
    planned = json.loads(CliRunner().invoke(app, [*command, "--hours", "--json"]).stdout)["planned"]
    assert (planned["runs"], planned["done"], planned["unknown"]) == (3, 0, 0)
    assert 0 < planned["hours"] < 1
    done = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(done.stdout)["planned"]["done"] == 0
    after = CliRunner().invoke(app, [*command, "--hours"])
    assert after.stdout.strip() == "tiny: 3 runs, all done"
