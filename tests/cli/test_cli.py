"""The command line: outputs, exit codes, errors in one line, quick start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from cupola.cli import app

PLAN = """
name = "small"
rounds = 3
data = {name = "digits", partition = {kind = "iid", sites = 3}}
model = "linear"
engine = {workers = 1}
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: Any) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", list(sys.path))
    Path("plan.toml").write_text(PLAN)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def cupola(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output
    return result


def test_help_needs_no_torch() -> None:
    program = (
        "import sys, cupola, cupola.cli\n"
        "from typer.testing import CliRunner\n"
        "assert 'demo' in CliRunner().invoke(cupola.cli.app, ['--help']).output\n"
        "heavy = {'torch', 'numpy', 'sklearn', 'matplotlib', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_site_loads_neither_pictures_nor_accounting() -> None:
    """Every process of a site would wait for them: half of its start."""
    program = (
        "import sys, cupola.analysis.session, cupola.site.join\n"
        "heavy = {'matplotlib', 'dp_accounting', 'scipy.stats', 'sklearn'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_version() -> None:
    assert cupola("--version").output.startswith("cupola 0.")


def test_run_and_what_it_says() -> None:
    result = cupola("run", "plan.toml", "--out", "r")
    assert "3 rounds, accuracy" in result.stdout
    assert "report.html" in result.stdout
    quiet = cupola("run", "plan.toml", "--out", "q", "--quiet")
    assert len(quiet.stdout.splitlines()) == 1
    assert quiet.stderr == ""


def test_json_is_one_document() -> None:
    result = cupola("run", "plan.toml", "--json", "--set", "local.lr=0.2", "--twin")
    document = json.loads(result.stdout)
    assert document["status"] == "finished"
    assert document["folder"] == "runs/small"
    assert document["twin"]["final"]["round"] == 3
    many = cupola("run", "plan.toml", "--json", "--set", "seeds=[1,2]", "-o", "m", "-q")
    assert [run["seed"] for run in json.loads(many.stdout)["runs"]] == [1, 2]
    wrong = cupola("run", "plan.toml", "--json", "--set", "local.lr=-2", code=2)
    assert json.loads(wrong.stdout)["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["run", "no.toml"], 2, "no.toml: cannot be read"),
        (["run", "plan.toml", "--set", "local.learning_rate=1"], 2, "did you mean local.lr?"),
        (["run", "plan.toml", "--set", "local.lr=1e38", "--set", "local.weight_decay=1"], 1, ""),
        (["resume", "nowhere"], 2, "holds no run"),
        (["export", "nowhere", "--csv", "x"], 2, "nowhere is no folder"),
        (["export", "nowhere"], 2, "--csv FILE or --tensorboard DIR"),
        (["data", "get", "digits"], 2, "needs no download"),
        (["data", "show", "plan.toml", "--out", "x.doc"], 2, ".png or .svg"),
        (["data", "get", "nothing"], 2, "no data set 'nothing'"),
        (["check", "plan.toml", "--set", "data.partition.sites=0"], 2, "data.partition.sites = 0"),
    ],
)
def test_errors_are_one_line_and_have_a_code(arguments: list[str], code: int, said: str) -> None:
    result = cupola(*arguments, code=code)
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.startswith("cupola: ")
    assert len(result.stderr.splitlines()) == 1


def test_one_failed_run_of_several_does_not_stop_the_others() -> None:
    grid = ["--set", 'grid={"local.lr"=[1e38,0.1]}', "--set", "local.weight_decay=0.1"]
    result = cupola("run", "plan.toml", "-o", "r", *grid, "--json", code=1)
    assert [run["status"] for run in json.loads(result.stdout)["runs"]] == ["failed", "finished"]
    assert "cupola: r/lr=1e+38: 'train' in round 1: 0 of 3 sites answered" in result.stderr
    assert "lr=1e+38" in cupola("run", "plan.toml", "-o", "s", *grid, code=1).stderr


def test_usage_errors_have_code_two() -> None:
    cupola("run", code=2)
    cupola("fly", code=2)


def test_unexpected_errors_are_one_line_too(monkeypatch: Any) -> None:
    from cupola.training import build

    def broken(_: Any) -> None:
        raise RuntimeError("shapes cannot be multiplied\n(3x4 and 5x6)")

    monkeypatch.setattr(build, "host", broken)
    result = cupola("run", "plan.toml", code=1)
    assert "cupola: unexpected RuntimeError: shapes cannot be multiplied" in result.stderr
    assert len(result.stderr.splitlines()) == 1
    debug = CliRunner().invoke(app, ["--debug", "run", "plan.toml", "--overwrite", "-o", "x"])
    assert isinstance(debug.exception, RuntimeError)


@pytest.fixture(autouse=True)
def _no_debug(monkeypatch: Any) -> None:
    from cupola.cli.shell import Shell

    monkeypatch.setattr(Shell, "debug", False)


def test_same_folder_twice() -> None:
    cupola("run", "plan.toml", "--out", "r")
    assert "--overwrite" in cupola("run", "plan.toml", "--out", "r", code=2).stderr
    cupola("run", "plan.toml", "--out", "r", "--overwrite")
    assert "3 rounds" in cupola("resume", "r").stdout


def test_plans_may_name_code_in_the_current_folder() -> None:
    Path("mynet.py").write_text(
        "from torch import nn\n"
        "def net(classes): return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))\n"
    )
    cupola("run", "plan.toml", "--set", "model=mynet:net")
    sys.modules.pop("mynet")


def test_check_tells_size_cost_and_utility() -> None:
    text = cupola("check", "plan.toml").stdout
    assert "650 parameters" in text
    assert "equals centralised training: no" in text
    facts = json.loads(cupola("check", "plan.toml", "--json", "--set", "recipe=fedfgd").stdout)
    assert facts["utility"]["preserved"] is True
    assert facts["data"]["sites"] == 3
    assert facts["bytes"]["total"] == pytest.approx(3 * facts["bytes"]["per_round"])


def test_check_says_when_nothing_is_judged() -> None:
    settings = ["--set", 'data={name="synthetic",sites=4,partition="natural"}']
    assert (
        "judged on  nothing: there are no public data"
        in cupola("check", "plan.toml", *settings).stdout
    )
    on_sites = ["--set", "evaluation.on=sites"]
    assert "what sites hold out" in cupola("check", "plan.toml", *settings, *on_sites).stdout


def test_lists() -> None:
    assert "fedcmb+wga" in cupola("recipes").stdout
    names = [row["name"] for row in json.loads(cupola("recipes", "--json").stdout)]
    assert "scaffold" in names
    assert "mlp" in cupola("models").stdout
    assert json.loads(cupola("models", "--json").stdout)
    assert "digits" in cupola("data").stdout
    assert json.loads(cupola("data", "--json").stdout)


def test_the_partition_is_drawn() -> None:
    assert "3 sites, 1,438 samples" in cupola("data", "show", "plan.toml").stdout
    assert Path("small-sites.png").read_bytes().startswith(b"\x89PNG")


def test_export() -> None:
    cupola("run", "plan.toml", "--out", "r", "--set", "seeds=[1,2]", "-q")
    cupola("export", "r", "--csv", "all.csv")
    lines = Path("all.csv").read_text().splitlines()
    assert lines[0].startswith("run,round,sites")
    assert len(lines) == 7
    cupola("export", "r/seed=1", "--csv", "one.csv")
    assert len(Path("one.csv").read_text().splitlines()) == 4


def test_export_to_tensorboard() -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    cupola("run", "plan.toml", "--out", "r", "-q")
    cupola("export", "r", "--tensorboard", "logs")
    log = events.EventAccumulator("logs")
    log.Reload()
    assert [event.step for event in log.Scalars("test/accuracy")] == [1, 2, 3]


def test_ctrl_c_has_its_own_code_and_says_how_to_go_on() -> None:
    command = [sys.executable, "-c", "from cupola.cli import main; main()"]
    child = subprocess.Popen(
        [*command, "run", "plan.toml", "--out", "r", "--set", "rounds=1000000"],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    limit = time.monotonic() + 60
    history = Path("r/history.jsonl")
    while not (history.exists() and history.stat().st_size) and time.monotonic() < limit:
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "resume with `cupola resume r`" in err
    assert out == ""
    assert json.loads(Path("r/result.json").read_text())["status"] == "stopped"


@pytest.mark.slow
def test_demo() -> None:
    result = cupola("demo")
    assert "rounds to 90 %" in result.stdout
    assert "fedcmb-wga" in result.stdout
    assert Path("runs/demo/report.html").exists()
    document = json.loads(cupola("demo", "--json").stdout)
    assert document["runs"][0]["label"] == "centralised"


@pytest.mark.parametrize("command", [["--help"], ["recipes"], ["recipes", "--json"]])
def test_a_reader_that_leaves_is_no_error(command):
    """`cupola recipes | head -1`; and with nobody who reads at all."""
    reading, writing = os.pipe()
    os.close(reading)
    run = [sys.executable, "-m", "cupola", *command]
    done = subprocess.run(run, stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_wrong_command_stays_wrong_when_nobody_reads():
    reading, writing = os.pipe()
    os.close(reading)
    run = [sys.executable, "-m", "cupola", "check", "there-is-none.toml"]
    done = subprocess.run(run, stdout=writing, stderr=writing, text=True)
    os.close(writing)
    assert done.returncode == 2


def test_progress_says_of_how_many_and_how_long(tmp_path):
    from cupola.analysis.run_progress import Progress
    from cupola.cli.display import done, named, pace

    now = Progress("test", 8192, 14384, {}, 100.0, 61.9, tmp_path / "traits", (5, 6), "testing")
    shown = (named(now), done(now), pace(now))
    assert shown == (
        "traits, step 5 of 6: testing", "8,192 of 14,384", "about 62 s left in this step",
    )  # fmt: skip
    last = replace(now, step=(6, 6), seconds_left=0.2)
    assert pace(last) == "about 1 s left"
    unknown = replace(last, seconds_left=float("inf"), whole=0)
    assert (done(unknown), pace(unknown)) == ("", "")
