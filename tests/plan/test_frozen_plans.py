"""Plans with [trainable]: what they send and keep, resumes, engines, `check`, reports, levels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from samples import SMALL
from test_run import checked, go, same, stop_after

import cupola
from cupola.analysis.plan_file import load
from cupola.errors import FederationError, PlanError
from cupola.nn.regenerate import values
from cupola.training import build, frozen
from cupola.training.forecast import foresee

MLP = {"name": "mlp", "hidden": [8]}
PART: dict[str, Any] = {
    **SMALL,
    "rounds": 3,
    "model": MLP,
    "trainable": {"freeze": ["1"]},
}
LEVELS: dict[str, Any] = {
    **PART,
    "trainable": {"freeze": ["1.bias"], "level": [{"freeze": ["1"], "sites": [1, 3]}]},
}
TRAINED, WHOLE = 90, 90 + 65 * 8


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("part")
    go(folder / "run", plan=PART)
    return folder / "run"


def test_a_run_keeps_the_whole_model(done: Path) -> None:
    saved = load_file(done / "model.safetensors")
    assert sum(a.size for a in saved.values()) == WHOLE
    program = build.training(load(PART))
    made = values(program.problem.frozen_seed, "1.weight", (8, 64), (2 / 64) ** 0.5, 0.0)
    assert np.array_equal(saved["1.weight"], made.astype(np.float32))
    run = cupola.Run.open(done)
    weights = run.model().state_dict()
    assert all(np.array_equal(weights[n].numpy(), a) for n, a in saved.items())
    assert (run.result["parameters"], run.result["trainable"]) == (WHOLE, TRAINED)
    last = run.history[-1]["test"]["accuracy"]
    assert last > 0.2  # of ten classes, after three rounds


@pytest.mark.parametrize("plan", [PART, LEVELS])
def test_bytes_are_those_that_were_predicted(plan: dict[str, Any], tmp_path: Path) -> None:
    result = go(tmp_path / "run", plan=plan).result
    cost = foresee(load(plan))
    assert (cost.down, cost.up) == (result["bytes_down"], result["bytes_up"])
    whole = foresee(load({**plan, "trainable": {}}))
    assert whole.per_site_up - cost.per_site_up > 4 * 8


def test_resumed_after_a_crash(done: Path, tmp_path: Path) -> None:
    saving = ("checkpoint_seconds=0",)
    go(tmp_path / "whole", *saving, plan=PART)
    with pytest.raises(SystemExit):
        go(tmp_path / "run", *saving, plan=PART, progress=stop_after(2))
    cupola.resume(tmp_path / "run", report=False)
    same(tmp_path / "whole", tmp_path / "run")
    model = "model.safetensors"
    assert (done / model).read_bytes() == (tmp_path / "run" / model).read_bytes()


def test_resumed_with_another_generator_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        go(tmp_path / "run", "checkpoint_seconds=0", plan=PART, progress=stop_after(1))
    other = lambda *facts, **how: 1.001 * values(*facts, **how)  # noqa: E731
    monkeypatch.setattr(frozen, "values", other)
    with pytest.raises(FederationError, match="another version of cupola"):
        cupola.resume(tmp_path / "run", report=False)


@pytest.mark.parametrize("plan", [PART, LEVELS])
def test_other_engines_and_modes(plan: dict[str, Any], tmp_path: Path) -> None:
    models = []
    for i, settings in enumerate((["engine.mode=one-by-one"], ["engine.mode=stacked"])):
        go(tmp_path / str(i), *settings, "dtype=float64", "rounds=2", plan=plan)
        models.append(load_file(tmp_path / str(i) / "model.safetensors"))
    for name, array in models[0].items():
        assert np.abs(array - models[1][name]).max() < 1e-12


@pytest.mark.slow
def test_separate_processes(tmp_path: Path) -> None:
    """With levels: tests/training/test_frozen.py."""
    go(tmp_path / "one", "engine.mode=one-by-one", "rounds=2", plan=PART)
    go(tmp_path / "other", "engine.kind=processes", "engine.timeout=900", "rounds=2", plan=PART)
    name = "model.safetensors"
    assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    one, other = (cupola.Run.open(tmp_path / n).result for n in ("one", "other"))
    assert (one["bytes_down"], one["bytes_up"]) == (other["bytes_down"], other["bytes_up"])


def test_the_twin_holds_everything_too(tmp_path: Path) -> None:
    run = go(tmp_path / "run", "twin=true", "recipe=fedfgd", "dtype=float64", plan=PART)
    ours, theirs = (load_file(tmp_path / "run" / p / "model.safetensors") for p in ("", "twin"))
    assert ours.keys() == theirs.keys()
    assert run.result["twin"]["weight_difference"] < 1e-12


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"freeze": ["conv1"]}, "trainable.freeze: 'conv1' names no trainable parameter"),
        ({"freeze": ["*"]}, "nothing is left to train"),
        ({"frieze": ["1"]}, "did you mean trainable.freeze"),
        ({"level": [{"freeze": ["1"], "share": 2}]}, "share"),
    ],
)
def test_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        build.training(load({**PART, "trainable": change}))


def test_check_says_what_is_trained_and_how_long_links_take(tmp_path: Path) -> None:
    said = checked(LEVELS, tmp_path)
    assert "trainable 602 (98.69 %); 8 are frozen and come from a seed" in said
    assert "2 sites train 90 of them" in said
    assert "at 0.75 MB/s down and 0.25 up" in said
    facts = json.loads(checked(PART, tmp_path, "--json", "--set", "link.up=1"))
    assert facts["model"]["trainable"] == TRAINED
    down, up = facts["bytes"]["per_site_down"], facts["bytes"]["per_site_up"]
    assert facts["link"]["seconds"] == pytest.approx(down / 0.75e6 + up / 1e6)


def test_reports_say_how_long_links_take(done: Path) -> None:
    from cupola import report

    text = report.write(done).read_text()
    assert "At 0.75 MB/s down and 0.25 MB/s up the messages of a round" in text
    assert "14.75 % of them trained" in text


@pytest.mark.parametrize("mechanism", ["dp-sgd", "dp-fedavg", "dp-fedavg-distributed"])
def test_budgets_are_charged_as_ever(mechanism: str, tmp_path: Path) -> None:
    privacy = {"epsilon": 8.0, "budget": {"epsilon": 9.0, "trust_coordinator": True}}
    plan = {
        **PART,
        "recipe": mechanism,
        "data": {"name": "digits", "partition": {"kind": "iid", "sites": 4}},
        "local": {"lr": 0.1, "batch_size": 8, "weighting": "uniform"},
        "privacy": privacy,
        "rounds": 1,
    }
    spent = []
    for i, part in enumerate(({"freeze": ["1"]}, {})):
        run = go(tmp_path / str(i), plan={**plan, "trainable": part})
        spent.append(run.result["privacy"]["epsilon"])
    assert spent[0] == spent[1]
