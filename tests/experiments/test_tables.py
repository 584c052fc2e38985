"""Published tables: reading them, running them resumably, published beside measured."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from typer.testing import CliRunner

from cupola.cli import app
from cupola.errors import DataError, PlanError
from cupola.report import open_run
from cupola.sweep import kept
from reproduce import find_table, jobs, reproduce, seeds_of, tables
from reproduce.measure import measure, weights_mse
from reproduce.outcome import markdown, paired, value

CHECKOUT = Path(__file__).resolve().parents[2]
PLAN = """
name = "tiny"
rounds = 3
[data]
name = "digits"
[data.partition]
kind = "iid"
sites = 4
[model]
name = "linear"
[local]
lr = 0.1
batch_size = 64
"""

TABLE = """
caption = "Momentum | helps <FedAvg>"
source = "Someone 2020, Table 1"
note = "Digits, three rounds."
plan = "base.toml"
seeds = [1, 2]
reference_column = "slow"

[[column]]
name = "slow"
settings = ["local.lr=0.05"]

[[column]]
name = "fast"
settings = ["local.lr=0.2"]

[[row]]
name = "FedAvg"
published = { "slow" = [60.0, 0.5], "fast" = 70 }

[[row]]
name = "FedAvgM"
settings = ["recipe=fedavgm"]
published = { "slow" = [62.5, 0.4] }
skip = ["fast"]

[[cell]]
row = "FedAvgM"
column = "slow"
settings = ["rounds=2"]
"""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def plans(tmp_path):
    folder = tmp_path / "experiments" / "tiny"
    folder.mkdir(parents=True)
    (folder / "base.toml").write_text(PLAN)
    (folder / "table.toml").write_text(TABLE)
    return tmp_path / "experiments"


def test_cells_and_settings(plans):
    table = find_table("tiny", plans)
    cells = {(c.row, c.column): c for c in table.cells()}
    assert list(cells) == [("FedAvg", "slow"), ("FedAvg", "fast"), ("FedAvgM", "slow")]
    special = cells["FedAvgM", "slow"]
    assert special.settings == ("local.lr=0.05", "recipe=fedavgm", "rounds=2")
    assert (special.published, special.spread) == (62.5, 0.4)
    plan = table.plan_of(special, 2)
    assert (plan.recipe, plan.rounds, plan.local.lr, plan.seed) == ("fedavgm", 2, 0.05, 2)
    assert list(tables(plans)) == ["tiny"]
    assert seeds_of(table) == (1, 2)
    assert seeds_of(table, 1) == (1,)
    assert seeds_of(table, 4) == (1, 2, 3, 4)


def test_runs_measures_and_goes_on(plans, tmp_path):
    table = find_table("tiny", plans)
    out = tmp_path / "out"
    first = reproduce(table, out, (1,))
    stamp = (out / "fedavg-slow-seed-1" / "history.jsonl").stat().st_mtime_ns
    found = reproduce(table, out)
    assert (out / "fedavg-slow-seed-1" / "history.jsonl").stat().st_mtime_ns == stamp
    assert found == json.loads((out / "results.json").read_text())
    cell = found["cells"][0]
    assert cell["values"]["1"] == first["cells"][0]["values"]["1"]
    ends = [open_run(out / f"fedavg-slow-seed-{s}").final("accuracy", "test") for s in (1, 2)]
    assert cell["mean"] == pytest.approx(100 * statistics.mean(ends))
    assert cell["spread"] == pytest.approx(100 * statistics.stdev(ends))
    rows = {(d["what"], d["against"], d["within"]): d for d in found["differences"]}
    assert set(rows) == {("FedAvgM", "FedAvg", "slow"), ("fast", "slow", "FedAvg")}
    momentum = rows["FedAvgM", "FedAvg", "slow"]
    assert momentum["published"] == pytest.approx(2.5)
    assert momentum["pairs"] == 2
    other = {c["row"]: c for c in found["cells"] if c["column"] == "slow"}["FedAvgM"]
    gaps = [other["values"][s] - cell["values"][s] for s in ("1", "2")]
    assert momentum["mean"] == pytest.approx(statistics.mean(gaps))
    text = (out / "table.md").read_text()
    assert "| FedAvg | 60.00 ± 0.50 | " in text
    assert "Momentum \\| helps &lt;FedAvg>" in text
    html = (out / "report.html").read_text()
    assert "Published beside measured" in html
    assert "Momentum | helps &lt;FedAvg&gt;" in html


def test_further_measures_of_the_same_runs(plans, tmp_path):
    table = """
caption = "Upcycling"
source = "Someone 2020"
plan = "base.toml"
settings = ["data.partition.test=0.2", "evaluation.per_site=true", "evaluation.train=true",
            "evaluation.on=sites", "data.partition_seed={seed}"]
seeds = [3, 4]
also = ["train_accuracy", "worst_sites", "sites_spread", "bytes"]

[[row]]
name = "FedAvg"

[[row]]
name = "FedProx"
settings = ["recipe=fedprox"]

[[row]]
name = "Upcycled"
settings = ["recipe=upcycled-fedprox"]
against = ["FedProx", "FedAvg"]
also = { train_accuracy = { accuracy = 90 } }
"""
    (plans / "tiny" / "table.toml").write_text(table)
    found = reproduce(read := find_table("tiny", plans), tmp_path / "out")
    assert read.plan_of(read.cells()[0], 4).data.partition_seed == 4
    names = [(d["what"], d["against"]) for d in found["differences"]]
    assert names == [("FedProx", "FedAvg"), ("Upcycled", "FedProx"), ("Upcycled", "FedAvg")]
    train, worst, spread, size = found["also"]
    assert [c["published"] for c in train["cells"]] == [None, None, 90]
    run = open_run(tmp_path / "out" / "upcycled-accuracy-seed-3")
    own = sorted(m["accuracy"] for m in run.last["per_site"].values())
    assert worst["cells"][2]["values"]["3"] == pytest.approx(100 * own[0])
    assert spread["cells"][2]["values"]["3"] == pytest.approx(100 * np.std(own))
    fit = run.last["sites_train"]["accuracy"]
    assert train["cells"][2]["values"]["3"] == pytest.approx(100 * fit)
    assert size["cells"][2]["mean"] < size["cells"][1]["mean"]
    text = (tmp_path / "out" / "table.md").read_text()
    assert "**Mean accuracy of the worst tenth of the sites**" in text
    assert "| | accuracy |" in text.replace("|  |", "| |")
    assert "Mean accuracy of the worst tenth" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("mechanism", ["output", "objective"])
def test_epsilon_beside_what_003_would_print(plans, tmp_path, mechanism):
    strength = "privacy.noise_multiplier=5" if mechanism == "output" else "privacy.answer_epsilon=2"
    table = f"""
caption = "Private"
source = "ours"
plan = "base.toml"
settings = ["privacy.mechanism={mechanism}", "privacy.neighbours=replace-one", "{strength}"]
measure = "epsilon"
also = ["epsilon_published"]

[[row]]
name = "FedProx"
settings = ["recipe=fedprox", "rounds=4"]

[[row]]
name = "Upcycled"
settings = ["recipe=upcycled-fedprox", "rounds=4"]
"""
    (plans / "tiny" / "table.toml").write_text(table)
    found = reproduce(find_table("tiny", plans), tmp_path / "out")
    prox, up = (c["mean"] for c in found["cells"])
    assert up < prox
    prox, up = (c["mean"] for c in found["also"][0]["cells"])
    run = open_run(tmp_path / "out" / "upcycled-epsilon-seed-1")
    sizes = run.partition["sizes"]
    if mechanism == "output":
        # 2 releases, clip 1, noise 5 * 2/(n mu) at mu 0.1: the size cancels.
        one = 2 * np.sqrt((2 * (1 / (5 * 20)) ** 2 / 2) * (np.log(1e5) + 1))
        assert min(sizes) > 10
        assert up == pytest.approx(one)
        assert prox == pytest.approx(one * np.sqrt(2))
    else:
        assert prox / up == pytest.approx(5 / 3)  # its sum runs from 0 to M


def test_paired_differences():
    found = paired({1: 3.0, 2: 5.0, 3: 1.0}, {1: 1.0, 2: 2.0, 4: 9.0})
    assert (found["mean"], found["pairs"]) == (2.5, 2)
    assert found["interval"] == pytest.approx(12.706 * 0.5, rel=1e-3)
    assert paired({1: None}, {1: 2.0}) == {
        "mean": None,
        "spread": None,
        "pairs": 0,
        "interval": None,
    }


def test_values_in_words():
    assert value(66.361, 0.35) == "66.36 ± 0.35"
    assert value(13314.6, 0.0) == "13,315 ± 0"
    assert value(-12854.5, sign=True) == "-12,854"
    assert value(4e-20) == "4e-20"
    assert value(2.5, sign=True) == "+2.50"
    assert value(None) == "–"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("caption =", "captoin ="), "captoin"),
        (('"fast" = 70', '"fats" = 70'), "'fats' is unknown; there are: slow, fast"),
        (('reference_column = "slow"', 'reference_column = "x"'), "reference_column"),
        (('name = "fast"', 'name = "slow"'), "same name"),
        (("seeds = [1, 2]", "seeds = []"), "seeds"),
        (("seeds = [1, 2]", 'measure = "rounds_to"'), "needs target"),
        (("caption", "= ="), "not TOML"),
    ],
)
def test_faulty_tables_are_refused(plans, change, said):
    path = plans / "tiny" / "table.toml"
    path.write_text(TABLE.replace(*change, 1))
    with pytest.raises(PlanError, match=said):
        find_table("tiny", plans)


def test_missing_things_are_named(plans, tmp_path):
    with pytest.raises(PlanError, match="did you mean 'tiny'"):
        find_table("tiny1", plans)
    with pytest.raises(PlanError, match="no folder"):
        tables(tmp_path / "nowhere")
    (plans / "tiny" / "base.toml").unlink()
    with pytest.raises(PlanError, match=r"plan 'base\.toml' is not there"):
        jobs(find_table("tiny", plans), tmp_path, (1,))


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """As from a wheel, called in a folder that is no checkout."""
    home = tmp_path / "lib" / "site-packages" / "cupola" / "__init__.py"
    monkeypatch.setattr("cupola.__file__", str(home))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.mark.usefixtures("installed")
def test_without_a_checkout_the_command_says_where_tables_are_reproduced(plans, tmp_path):
    for more in ([], ["tiny"], ["--list", "--plans", str(plans)]):  # tables alone are no tool
        refused = CliRunner().invoke(app, ["reproduce", *more])
        assert refused.exit_code == 2
        assert "reproduced from a source checkout" in refused.stderr
        assert "--plans DIR" in refused.stderr
    (tmp_path / "results.json").write_text("{}")
    refused = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert refused.exit_code == 2
    assert "source checkout" in refused.stderr


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("place", [CHECKOUT, CHECKOUT / "experiments"])
def test_an_installed_command_finds_the_tool_where_it_is_called(monkeypatch, place):
    monkeypatch.chdir(place)
    listed = CliRunner().invoke(app, ["reproduce", "--list"])
    assert listed.exit_code == 0, listed.output
    assert "upfl-momentum" in listed.stdout


@pytest.mark.usefixtures("installed")
def test_an_installed_command_finds_the_tool_where_it_is_told():
    told = ["reproduce", "--list", "--plans", str(CHECKOUT / "experiments")]
    listed = CliRunner().invoke(app, told)
    assert listed.exit_code == 0, listed.output
    assert "upfl-momentum" in listed.stdout


def test_the_folder_runs_as_a_module():
    done = subprocess.run(
        [sys.executable, "-m", "reproduce", "--list"],
        cwd=CHECKOUT / "experiments",
        env={**os.environ, "PYTHONPATH": str(CHECKOUT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "upfl-momentum" in done.stdout


def test_nothing_in_the_package_imports_the_tool():
    """Only the command's hook loads it, by name."""
    for path in (CHECKOUT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            named = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [n for n in named if n.split(".")[0] == "reproduce"], path


def make(folder, history, best=False):
    folder.mkdir()
    rows = "".join(json.dumps(r) + "\n" for r in history)
    (folder / "history.jsonl").write_text(rows)
    (folder / "plan.toml").write_text(f"[evaluation]\nbest = {str(best).lower()}\n")
    return open_run(folder)


def test_measures(tmp_path):
    history = [
        {"round": r, "test": {"accuracy": t}, "validation": {"accuracy": v}, "bytes_up": 10 * r,
         "bytes_down": r, "seconds": r / 2}
        for r, t, v in ((1, 0.5, 0.9), (2, 0.7, 0.6), (3, 0.6, 0.8))
    ]  # fmt: skip
    run = make(tmp_path / "last", history)
    assert kept(run, "accuracy") == 0.6
    assert kept(run, "accuracy", validation=True) == 0.8
    assert measure(run, "rounds") == 3
    assert measure(run, "bytes") == 33
    assert measure(run, "rounds_to", 0.7) == 2
    assert measure(run, "bytes_to", 0.7) == 22
    assert measure(run, "rounds_to", 0.99) is None
    assert measure(run, "auroc") is None
    chosen = make(tmp_path / "best", history, best=True)
    assert kept(chosen, "accuracy") == 0.5  # best on validation, whatever the test data say


def test_weights_against_the_twin(tmp_path):
    (tmp_path / "twin").mkdir()
    save_file({"a": np.array([1.0, 2.0]), "b": np.array([0.0])}, tmp_path / "model.safetensors")
    with pytest.raises(DataError, match="twin = true"):
        weights_mse(tmp_path)
    twin = {"a": np.array([1.0, 2.5]), "b": np.array([1.0])}
    save_file(twin, tmp_path / "twin" / "model.safetensors")
    assert weights_mse(tmp_path) == pytest.approx((0.25 + 1) / 3)


def test_commands(plans, tmp_path):
    listed = CliRunner().invoke(app, ["reproduce", "--list", "--plans", str(plans)])
    assert listed.exit_code == 0, listed.output
    assert "FedAvg · slow: 60.00 ± 0.50" in listed.stdout
    out = tmp_path / "out"
    command = ["reproduce", "tiny", "--plans", str(plans), "--seeds", "1", "-o", str(out)]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert "3 runs, 8 rounds in all" in done.stderr
    assert "60.00" in done.stdout
    again = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(again.stdout)["cells"][0]["runs"] == 1
    assert markdown(json.loads((out / "results.json").read_text()))
    unknown = CliRunner().invoke(app, ["reproduce", "tin", "--plans", str(plans)])
    assert unknown.exit_code == 2
    assert "did you mean 'tiny'" in unknown.stderr


def test_the_area_under_accuracy_against_epsilon_is_a_sum_of_trapezoids():
    held = [({"round": r}, a) for r, a in ((5, 0.2), (10, 0.6))]
    run = SimpleNamespace(
        result={"privacy": {"course": [(0.5, 1.0), (1.0, 3.0)]}},
        curve=lambda metric, split: held if (metric, split) == ("accuracy", "test") else [],
    )
    assert measure(run, "privacy_area") == pytest.approx(2.0 * 40)
    run.result = {"privacy": {"course": [(0.5, None), (1.0, None)]}}  # no noise
    assert measure(run, "privacy_area") is None
    run.result = {"privacy": None}
    assert measure(run, "privacy_area") is None


def test_rows_that_measure_the_same_run_share_it(tmp_path):
    folder = tmp_path / "plans" / "shared"
    folder.mkdir(parents=True)
    (folder / "base.toml").write_text(PLAN)
    (folder / "table.toml").write_text(
        'caption = "c"\nsource = "s"\nplan = "base.toml"\nmeasure = "accuracy"\n'
        '[[row]]\nname = "accuracy"\n'
        '[[row]]\nname = "loss"\nmeasure = "loss"\n'
        '[[row]]\nname = "other"\nsettings = ["local.lr=0.2"]\n'
    )
    table = find_table("shared", tmp_path / "plans")
    work = jobs(table, tmp_path / "runs", (1,))
    assert [job.folder.name for job in work] == ["accuracy-accuracy-seed-1"] * 2 + [
        "other-accuracy-seed-1"
    ]
    found = reproduce(table, tmp_path / "runs", (1,))
    one, two, _ = (cell["mean"] for cell in found["cells"])
    run = open_run(work[0].folder)
    assert one == pytest.approx(100 * kept(run, "accuracy"))
    assert two == pytest.approx(kept(run, "loss"))
    assert len(json.loads((tmp_path / "runs" / "runs.json").read_text())) == 2
