"""Sweeps: what is tried, on what it is judged, resume and halving."""

from __future__ import annotations

import json
import sys
import tomllib

import pytest
import torch
from typer.testing import CliRunner

import cupola.sweep.trials as module
from cupola.analysis.plan_file import load
from cupola.analysis.session import run
from cupola.cli import compare_runs  # noqa: F401 (registers the commands)
from cupola.cli.shell import app
from cupola.errors import FederationError, PlanError
from cupola.sweep import define, sweep
from cupola.sweep.pareto import Trial, front
from cupola.sweep.search_space import grid, parse_over

PLAN = {
    "name": "tiny",
    "rounds": 4,
    "data": {
        "name": "digits",
        "partition": {"kind": "iid", "sites": 4, "public_validation": 0.5},
    },
    "model": "linear",
    "local": {"lr": 0.1, "batch_size": 64},
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def without_validation() -> dict:
    cut = {"kind": "iid", "sites": 4}
    return {**PLAN, "data": {"name": "digits", "partition": cut}}


def test_values_and_ranges():
    assert parse_over("local.lr=0.1,1").values == (0.1, 1)
    assert parse_over("recipe=fedavg, fedprox").values == ("fedavg", "fedprox")
    assert parse_over("model.hidden=[32,64],[64]").values == ([32, 64], [64])
    log = parse_over("local.lr=0.001..1:log")
    assert (log.low, log.high, log.log, log.whole) == (0.001, 1, True, False)
    assert parse_over("local.epochs=1..5").whole


@pytest.mark.parametrize(
    "text",
    ["lr", "lr=", "=1", "lr=1,,2", "lr=1,1", "lr=2..1", "lr=0..1:log", "lr=.....1", "seed=1,2"],
)
def test_bad_over_is_refused_with_its_text(text):
    with pytest.raises(PlanError, match="--over"):
        parse_over(text)


def test_grid():
    assert grid([parse_over("a=1,2"), parse_over("b=x,y")])[1] == {"a": 1, "b": "y"}
    with pytest.raises(PlanError, match="strategy random"):
        grid([parse_over("lr=0.001..1:log")])


def test_never_selects_on_test_data():
    with pytest.raises(PlanError, match=r"public_validation=0\.5"):
        define(without_validation(), ["local.lr=0.1,0.2"])
    define(without_validation(), ["local.lr=0.1,0.2"], settings=["data.partition.validation=0.2"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"over": []}, "needs --over"),
        ({"over": ["local.lr=0.1", "local.lr=0.2"]}, "twice"),
        ({"over": ["local.lrr=0.1,0.2"]}, r"did you mean local\.lr"),
        ({"over": ["local.lr=0.1,-1"]}, "--over local.lr=-1"),
        ({"over": ["local.lr=0.1,0.2"], "trials": 3}, "a grid tries all"),
        ({"over": ["local.lr=0.1,0.2"], "budget": 7}, "needs 8 rounds"),
    ],
)
def test_wrong_definitions_name_the_way_out(arguments, said):
    with pytest.raises(PlanError, match=said):
        define(PLAN, **arguments)


def test_grid_sweep_selects_by_validation_and_goes_on(tmp_path, monkeypatch):
    made = define(PLAN, ["local.lr=0.0001,0.5", "local.batch_size=32,64"])
    assert made.cost() == 16
    folder = tmp_path / "sweep"
    done = []

    def stop(plan, path, **options):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(path.name)
        return run(plan, path, **options)

    monkeypatch.setattr(module, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep(made, folder)
    first = (folder / "trial-001" / "history.jsonl").stat().st_mtime_ns
    done.clear()
    monkeypatch.setattr(module, "run", lambda p, f, **o: done.append(f.name) or run(p, f, **o))
    found = sweep(made, folder)
    assert done == ["trial-003", "trial-004"]
    assert (folder / "trial-001" / "history.jsonl").stat().st_mtime_ns == first
    assert found["best"]["settings"]["local.lr"] == 0.5
    best = found["trials"][0]
    history = (folder / best["folders"][0] / "history.jsonl").read_text().splitlines()
    assert best["score"] == json.loads(history[-1])["validation"]["accuracy"]
    again = load(folder / "best.toml")
    assert again.local.lr == 0.5
    assert again.rounds == 4
    html = (folder / "report.html").read_text()
    assert "Private tuning: not charged" in html
    assert "Best accuracy" not in html  # test data crown nobody here
    assert "privacy" in found
    with pytest.raises(PlanError, match="another sweep"):
        sweep(define(PLAN, ["local.lr=0.1,0.2"]), folder)


def test_foreign_folder_is_refused(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(PlanError, match="other files"):
        sweep(define(PLAN, ["local.lr=0.1,0.2"]), tmp_path)


def test_halving_goes_on_from_checkpoints(tmp_path):
    made = define(
        {**PLAN, "rounds": 3}, ["local.lr=0.0001,0.01,0.5"], strategy="halving"
    )  # 3 trials for 1 round, then the best for 2 more
    assert made.rungs() == [(3, 1), (1, 3)]
    assert made.cost() == 5
    found = sweep(made, tmp_path / "s")
    assert [t["rounds"] for t in found["trials"]] == [3, 1, 1]
    folder = tmp_path / "s" / found["best"]["folders"][0]
    long = run(load(folder / "plan.toml"), tmp_path / "direct", report=False)
    keys = ("round", "test", "validation", "bytes_up", "bytes_down")
    ours = [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]
    assert [[r[k] for k in keys] for r in ours] == [[r[k] for k in keys] for r in long.history]
    assert sweep(made, tmp_path / "s") == found


def test_halving_with_cosine_begins_anew(tmp_path):
    plan = {**PLAN, "rounds": 3, "local": {**PLAN["local"], "schedule": {"kind": "cosine"}}}
    found = sweep(define(plan, ["local.lr=0.01,0.1,0.5"], strategy="halving"), tmp_path / "s")
    folder = tmp_path / "s" / found["best"]["folders"][0]
    direct = run(load(folder / "plan.toml"), tmp_path / "direct", report=False)
    last = json.loads((folder / "history.jsonl").read_text().splitlines()[-1])
    assert last["test"] == direct.history[-1]["test"]


def test_budget_shortens_halving():
    made = define(PLAN, ["local.lr=0.01,0.1,0.5"], strategy="halving", budget=5)
    assert made.cost() <= 5
    drawn = define(PLAN, ["local.lr=0.01..1:log"], strategy="random", budget=9)
    assert drawn.count == len(drawn.chosen) == 2


def test_seeds_are_averaged_and_divergence_is_a_result(tmp_path, monkeypatch):
    plan = {**PLAN, "rounds": 1, "seeds": [1, 2]}

    def diverge(plan, path, **options):
        if plan.local.lr == 7:
            raise FederationError("round 1: the model is no longer finite")
        return run(plan, path, **options)

    monkeypatch.setattr(module, "run", diverge)
    found = sweep(define(plan, ["local.lr=0.5,7"]), tmp_path / "s")
    good, bad = found["trials"]
    assert good["folders"] == ["trial-001-seed-1", "trial-001-seed-2"]
    assert bad["score"] is None
    assert "no longer finite" in bad["reason"]
    scores = [
        json.loads((tmp_path / "s" / f / "history.jsonl").read_text())["validation"]["accuracy"]
        for f in good["folders"]
    ]
    assert good["score"] == pytest.approx(sum(scores) / 2)


def test_command(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(load({**PLAN, "rounds": 1}).to_toml())
    with path.open("rb") as file:
        assert tomllib.load(file)["name"] == "tiny"
    command = [
        "sweep",
        str(path),
        "--over",
        "local.lr=0.1,0.5",
        "-o",
        str(tmp_path / "s"),
        "--json",
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["best"]["settings"] == {"local.lr": 0.5}
    result = CliRunner().invoke(app, ["report", str(tmp_path / "s")])
    assert result.stdout.strip() == str(tmp_path / "s" / "report.html")
    result = CliRunner().invoke(app, ["compare", str(tmp_path / "s"), "--target", "0.2", "--json"])
    assert [row["runs"] for row in json.loads(result.stdout)["runs"]] == [1, 1]
    result = CliRunner().invoke(app, ["sweep", str(path)])
    assert result.exit_code == 2
    assert "needs --over" in result.stderr


def measured(score, size=0.0, epsilon=None):
    return Trial(f"{score} {size} {epsilon}", {}, [], score, bytes=size, epsilon=epsilon)


def test_front():
    a, b, c, d = measured(0.9, 10), measured(0.8, 5), measured(0.8, 6), measured(None, 1)
    assert front([a, b, c, d], ("accuracy", "bytes")) == [a, b]
    assert front([a, b, c, d], ("accuracy",)) == [a]
    assert front([c, b, a], ("loss", "bytes")) == [b]  # the lower loss, and fewer bytes
    twice = [measured(0.9, 10), measured(0.9, 10)]
    assert front(twice, ("accuracy", "bytes")) == twice
    dear, cheap = measured(0.9, 10, 4.0), measured(0.9, 10, 2.0)
    assert front([dear, cheap, a], ("accuracy", "bytes", "epsilon")) == [cheap]  # a's is unknown


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"objectives": ["accuracy", "bites"]}, "choose from accuracy, bytes, epsilon"),
        ({"objectives": ["bytes"]}, "name accuracy, too"),
        ({"objectives": ["bytes", "accuracy", "bytes"]}, "one twice"),
        ({"objectives": ["accuracy", "epsilon"]}, "nothing protects"),
        ({"objectives": ["accuracy", "bytes"], "strategy": "halving"}, "one objective"),
        ({"strategy": "tpe", "over": ["local.lr=-1..1"]}, "--over local.lr=-1"),
    ],
)
def test_wrong_objectives_and_ends_are_refused(more, said):
    with pytest.raises(PlanError, match=said):
        define(PLAN, **{"over": ["local.lr=0.1,0.2"], **more})


def test_without_optuna_a_grid_works_and_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert define(PLAN, ["local.lr=0.1,0.2"], objectives=["accuracy", "bytes"]).count == 2
    for strategy in ("random", "tpe"):
        with pytest.raises(PlanError, match=r"cupola\[sweep\]"):
            define(PLAN, ["local.lr=0.1..0.2"], strategy, trials=2)


def test_tpe_killed_and_resumed_draws_the_same_trials(tmp_path, monkeypatch):
    over = ["local.lr=0.001..1:log", "local.epochs=1,2"]
    plan = {**PLAN, "rounds": 1}

    def made(trials=7):
        return define(plan, over, "tpe", trials, objectives=["accuracy", "bytes"])

    whole = sweep(made(), tmp_path / "whole")
    began = []

    def stop(plan, path, **options):
        began.append(path.name)
        if len(began) == 5:
            raise KeyboardInterrupt  # the setting is in runs.json, nothing of its run is
        return run(plan, path, **options)

    monkeypatch.setattr(module, "run", stop)
    with pytest.raises(KeyboardInterrupt):
        sweep(made(), tmp_path / "cut")
    monkeypatch.setattr(module, "run", lambda p, f, **o: began.append(f.name) or run(p, f, **o))
    assert sweep(made(), tmp_path / "cut") == whole
    assert began[5:] == ["trial-005", "trial-006", "trial-007"]
    sizes = {trial["bytes"] for trial in whole["trials"]}
    assert len(sizes) > 1  # by the digits of the learning rate
    assert whole["front"] == [whole["best"]["label"]]  # which do not count
    assert load(tmp_path / "cut" / "best.toml").local.lr == whole["best"]["settings"]["local.lr"]
    assert "the Pareto front" in (tmp_path / "cut" / "report.html").read_text()
    longer = sweep(made(8), tmp_path / "cut")  # more trials go on from these
    assert {t["label"] for t in longer["trials"]} > {t["label"] for t in whole["trials"]}


def test_a_combination_that_no_plan_allows_is_a_result(tmp_path):
    """Each value is fine with the first of the other key."""
    over = ["engine.mode=auto,stacked", "sum.kind=plain,masked"]
    made = define({**PLAN, "rounds": 1}, over, "tpe", trials=4)
    found = sweep(made, tmp_path / "s")
    assert [trial["score"] is None for trial in found["trials"]] == [False] * 3 + [True]
    assert "masked sums need every site's own answer" in found["trials"][-1]["reason"]


def test_rounds_can_be_varied():
    made = define(PLAN, ["rounds=1,3"])
    assert (made.cost(), made.longest) == (4, 3)
    assert define(PLAN, ["rounds=1..3"], "tpe", trials=2).cost() == 6  # at most
    with pytest.raises(PlanError, match="halving decides"):
        define(PLAN, ["rounds=1,3"], "halving")


def test_a_folder_of_an_earlier_version_is_resumed_with_its_trials(tmp_path):
    """It drew otherwise, and kept scores without bytes."""
    made = define({**PLAN, "rounds": 1}, ["local.lr=0.01..1:log"], "random", trials=2)
    folder = tmp_path / "s"
    first = sweep(made, folder)
    lrs = [trial["settings"]["local.lr"] for trial in first["trials"]]
    other = json.loads((folder / "runs.json").read_text())
    scores = {"trial-001@1": 0.25, "trial-002@1": 0.5}
    (folder / "scores.json").write_text(json.dumps(scores))
    for entry, lr in zip(other, (0.123, 0.456)):
        entry["settings"]["local.lr"] = lr
    (folder / "runs.json").write_text(json.dumps(other))
    found = sweep(made, folder)
    assert [trial["settings"]["local.lr"] for trial in found["trials"]] == [0.456, 0.123] != lrs
    assert found["best"]["score"] == 0.5


def test_accuracy_bytes_and_epsilon(tmp_path):
    private = {"mechanism": "dp-sgd", "clip": 1.0, "noise_multiplier": 1.0}
    plan = {**PLAN, "rounds": 1, "privacy": private}
    aims = ["accuracy", "bytes", "epsilon"]
    over = ["privacy.noise_multiplier=0.8,2", "rounds=1,2"]
    found = sweep(define(plan, over, objectives=aims), tmp_path / "s")
    by = {trial["label"]: trial for trial in found["trials"]}
    low, high = (by[f"noise_multiplier = {noise}, rounds = 1"] for noise in (0.8, 2))
    assert low["epsilon"] > high["epsilon"] > 0
    assert by["noise_multiplier = 2, rounds = 2"]["bytes"] > 1.5 * high["bytes"]
    assert by["noise_multiplier = 2, rounds = 2"]["rounds"] == 2
    assert found["rounds"] == 6
    assert set(found["front"]) <= set(by)
    assert high["label"] in found["front"]  # it costs least of all
    result = json.loads((tmp_path / "s" / high["folders"][0] / "result.json").read_text())
    assert high["epsilon"] == result["privacy"]["epsilon"]
