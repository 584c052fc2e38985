"""cupola search freeze: the paper's principles, on made-up scores and on a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

from cupola.analysis.plan_file import load
from cupola.cli import app
from cupola.errors import PlanError
from cupola.sweep import freeze_search
from cupola.sweep.freeze_search import Block, Trial, blocks, define, search

PLAN: dict[str, Any] = {
    "name": "small",
    "rounds": 2,
    "data": {
        "name": "digits",
        "partition": {"kind": "iid", "sites": 3, "public_validation": 0.5},
    },
    "model": {"name": "mlp", "hidden": [24, 12]},
    "local": {"lr": 0.1},
    "engine": {"workers": 1},
}


class Net(nn.Module):
    """Two stages, the second larger, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 3)  # too small to matter
        self.first = nn.Sequential(nn.Linear(20, 30), nn.LayerNorm(30), nn.Linear(30, 30))
        self.second = nn.Sequential(nn.Linear(30, 60), nn.Linear(60, 60))
        self.head = nn.Linear(60, 10)


def test_blocks_are_modules_without_the_last_layer() -> None:
    found = blocks(Net(), "")
    assert found == [Block("first", 630 + 930), Block("second", 1860 + 3660)]
    assert blocks(Net(), "second") == [Block("second.0", 1860), Block("second.1", 3660)]
    assert blocks(Net(), "", ["second.1"]) == [Block("first", 1560), Block("second.0", 1860)]


def scored(monkeypatch: pytest.MonkeyPatch, score: Any) -> list[list[str]]:
    """Trials with made-up scores instead of runs."""
    tried: list[list[str]] = []

    def pretend(trial: Trial, *_: Any) -> None:
        tried.append(trial.freeze)
        trial.score, trial.bytes = score(trial.freeze), 100.0 - 10 * len(trial.freeze)

    monkeypatch.setattr(freeze_search, "_try", pretend)
    monkeypatch.setattr(freeze_search, "_model", lambda _: Net())
    monkeypatch.setattr(freeze_search, "draw", lambda folder: folder)
    return tried


def test_largest_first_then_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tried = scored(monkeypatch, lambda _: 0.9)
    found = search(define(PLAN), tmp_path / "s")
    assert tried == [[], ["second"], ["second", "first"]]
    assert found["best"]["freeze"] == ["second", "first"]
    assert found["ended"] == "every block was tried"
    best = load(tmp_path / "s" / "best.toml")
    assert best.trainable.freeze == ("second", "first")


def test_a_block_that_degrades_is_given_back_for_its_parts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bad = {"second", "second.1"}
    tried = scored(monkeypatch, lambda names: 0.8 if bad & set(names) else 0.895)
    found = search(define(PLAN), tmp_path / "s")
    assert tried == [
        [],
        ["second"],
        ["second.1"],
        ["second.0"],
        ["second.0", "first"],
    ]
    assert found["best"]["freeze"] == ["second.0", "first"]
    assert [t["accepted"] for t in found["trials"]] == [True, False, False, True, True]


def test_the_budget_is_kept_and_can_be_raised(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried = scored(monkeypatch, lambda _: 0.9)
    found = search(define(PLAN, budget=5), tmp_path / "s")
    assert len(tried) == 2
    assert found["ended"] == "the budget is spent"
    assert found["rounds"] == 4 <= found["budget"]
    assert search(define(PLAN, budget=6), tmp_path / "s")["rounds"] == 6
    with pytest.raises(PlanError, match="another search"):
        search(define(PLAN, tolerance=0.5), tmp_path / "s")


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        ({**PLAN, "data": "digits"}, {}, "no validation data"),
        (PLAN, {"budget": 3}, "need 4 rounds"),
        ({**PLAN, "trainable": {"only": ["5"]}}, {}, "write 'only'"),
        ({**PLAN, "model": "linear"}, {}, "no block to freeze"),
        ({**PLAN, "grid": {"local.lr": [0.1]}}, {}, "has a \\[grid\\]"),
        (PLAN, {"keep": ["conv"]}, "--keep"),
    ],
)
def test_refused(plan: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError, match=words):
        define(plan, **options)


def test_for_real_and_again(tmp_path: Path) -> None:
    path, out = tmp_path / "plan.toml", tmp_path / "out"
    path.write_text(load(PLAN).to_toml())
    command = ["search", "freeze", str(path), "--out", str(out), "--tolerance", "1", "--json"]
    first = CliRunner().invoke(app, [*command, "--budget", "4"])
    assert first.exit_code == 0, first.output
    (out / "trial-002" / "result.json").unlink()  # as if it was killed at its end
    before = (out / "trial-001" / "result.json").stat().st_mtime_ns
    second = CliRunner().invoke(app, [*command, "--budget", "6"])
    assert second.exit_code == 0, second.output
    found = json.loads(second.stdout)
    assert [t["freeze"] for t in found["trials"]] == [[], ["1"], ["1", "3"]]
    assert (out / "trial-001" / "result.json").stat().st_mtime_ns == before
    sent = [t["bytes"] for t in found["trials"]]
    assert sent[0] > 2 * sent[1] > 2 * sent[2]
    assert found["best"]["freeze"] == ["1", "3"]
    assert "What can be frozen" in (out / "report.html").read_text()
    assert load(out / "best.toml").trainable.freeze == ("1", "3")
    drawn = CliRunner().invoke(app, ["report", str(out)])
    assert drawn.exit_code == 0, drawn.output
