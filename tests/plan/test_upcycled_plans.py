"""Plans with upcycling: records, bytes, charges, budgets, resumes, and what `check` says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from samples import SMALL
from test_run import checked, go, history, same, stop_after

import cupola
from cupola.analysis.plan_file import load
from cupola.audit.replayed_run import Subject
from cupola.errors import PlanError
from cupola.privacy.budget import Book
from cupola.training import build
from cupola.training.forecast import foresee
from cupola.training.spending import promised, resolved

UP: dict[str, Any] = {**SMALL, "recipe": "upcycled-fedprox", "rounds": 8}
PROX: dict[str, Any] = {**UP, "recipe": "fedprox"}
TARGETS: dict[str, dict[str, Any]] = {
    "dp-sgd": {"recipe": "dp-sgd", "local": {"batch_size": 8, "lr": 0.5}},
    "central": {"recipe": "dp-fedavg", "local": {"lr": 0.1}},
    "distributed": {"recipe": "dp-fedavg-distributed", "local": {"lr": 0.1}},
    "output": {
        "recipe": "fedprox",
        "privacy": {"mechanism": "output", "neighbours": "replace-one"},
    },
    "objective": {
        "recipe": "fedprox",
        "privacy": {"mechanism": "objective", "neighbours": "replace-one"},
    },
}
FREE = {"upcycle": {"factor": 0.7}}


def private(mechanism: str, rounds: int, **more: Any) -> dict[str, Any]:
    given = TARGETS[mechanism]
    sites = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    privacy = {**given.get("privacy", {}), "epsilon": 4.0}
    return {**SMALL, **given, "data": sites, "rounds": rounds, "privacy": privacy, **more}


def test_a_line_for_every_round(tmp_path: Path) -> None:
    go(tmp_path / "up", plan=UP)
    go(tmp_path / "prox", "rounds=4", plan=PROX)
    up, prox = history(tmp_path / "up"), history(tmp_path / "prox")
    assert [r["round"] for r in up] == list(range(1, 9))
    assert all("accuracy" in r["test"] for r in up)
    assert up[0] == prox[0]  # the same sites, batches and bytes; not yet upcycled
    for odd, even in zip(up[::2], up[1::2]):
        assert even["sites"] == 0
        assert even["upcycled"] == pytest.approx(0.1 / 0.14)
        assert (odd["bytes_down"], odd["bytes_up"]) == (even["bytes_down"], even["bytes_up"])
    assert [r["samples"] for r in up[::2]] == [r["samples"] for r in prox]
    ledger = [json.loads(x) for x in (tmp_path / "up/ledger.jsonl").read_text().splitlines()]
    assert [entry["round"] for entry in ledger] == [1, 2, 3, 4]


@pytest.mark.parametrize("rounds", [8, 9, 50])
def test_half_the_bytes(rounds: int) -> None:
    """2M rounds cost half of FedProx's 2M; an odd number one training round more."""
    up, prox = (foresee(load(plan, [f"rounds={rounds}"])) for plan in (UP, PROX))
    assert up.total == pytest.approx(prox.total * -(-rounds // 2) / rounds)
    if rounds % 2 == 0:
        assert up.total <= 0.52 * prox.total


def test_bytes_are_counted_as_expected(tmp_path: Path) -> None:
    up, prox = go(tmp_path / "up", plan=UP).result, go(tmp_path / "prox", plan=PROX).result
    counted = [r["bytes_down"] + r["bytes_up"] for r in (up, prox)]
    assert counted[0] == foresee(load(UP)).total
    assert counted[0] <= 0.52 * counted[1]


@pytest.mark.parametrize("stop", [3, 4])
@pytest.mark.parametrize("saved", [0, 1000])
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, stop: int, saved: int) -> None:
    settings = ["server.upcycle.adaptive=true", "server.upcycle.damping=0.04"]
    settings += [f"checkpoint_seconds={saved}", "server.momentum=0.5"]
    whole = go(tmp_path / "whole", *settings, plan=UP)
    with pytest.raises(SystemExit):
        go(tmp_path / "again", *settings, plan=UP, progress=stop_after(stop))
    go(tmp_path / "again", *settings, plan=UP, resume=True)
    same(whole.folder, tmp_path / "again")


@pytest.mark.slow
def test_separate_sites_give_the_same_run(tmp_path: Path) -> None:
    near = go(tmp_path / "near", "rounds=4", plan=UP)
    far = go(tmp_path / "far", "rounds=4", "engine.kind=processes", plan=UP)
    one, other = near.model().state_dict(), far.model().state_dict()
    assert all(np.allclose(one[n], other[n], rtol=0, atol=1e-6) for n in one)
    assert [r["sites"] for r in far.history] == [4, 0, 4, 0]


def test_masked_sums_with_free_rounds(tmp_path: Path) -> None:
    near = go(tmp_path / "near", "rounds=4", plan=UP)
    far = go(tmp_path / "far", "rounds=4", "sum=masked", plan=UP)
    one, other = near.model().state_dict(), far.model().state_dict()
    assert all(np.allclose(one[n], other[n], rtol=0, atol=1e-5) for n in one)


# Privacy


@pytest.mark.parametrize("mechanism", TARGETS)
def test_a_target_is_spent_on_training_rounds(tmp_path: Path, mechanism: str) -> None:
    """The noise of 2M rounds is that of M without upcycling; check, books and result agree."""
    plan = load(private(mechanism, 6, server=FREE))
    host = build.host(plan)
    noise = resolved(plan, host)
    assert noise == resolved(load(private(mechanism, 3)), host)
    assert noise != resolved(load(private(mechanism, 6)), host)
    promise = promised(build.training(plan, host), host)
    assert promise is not None
    assert promise.epsilon <= 4.0
    run = go(tmp_path / "run", plan=private(mechanism, 6, server=FREE))
    assert run.result["privacy"]["epsilon"] == pytest.approx(promise.epsilon, rel=1e-6)
    plain = go(tmp_path / "plain", plan=private(mechanism, 3))
    books = [Book.read(r.folder / "privacy.jsonl").histories() for r in (run, plain)]
    assert books[0] == books[1] != {}


def test_a_budget_for_three_answers_suffices_for_six_rounds(tmp_path: Path) -> None:
    budget = {"epsilon": 4.0, "delta": 1e-5, "trust_coordinator": True}
    plan = private("central", 6, server=FREE)
    plan["privacy"]["budget"] = budget
    assert all(not r["failed"] for r in go(tmp_path / "run", plan=plan).history)
    noise = resolved(load(plan), build.host(load(plan))).noise_multiplier
    every = private("central", 6)
    every["privacy"] = {"noise_multiplier": noise, "budget": budget}
    failed = [sum(r["failed"].values()) for r in go(tmp_path / "more", plan=every).history]
    assert failed == [0, 0, 0, 4, 4, 4]  # without upcycling the fourth round exceeds it


def test_an_audit_repeats_training_rounds(tmp_path: Path) -> None:
    run = go(tmp_path / "run", plan=private("dp-sgd", 6, server=FREE))
    subject = Subject.open(run.folder, 10)
    assert subject.done == subject.rounds == 3
    assert [subject.question(k).round for k in (1, 2, 3)] == [1, 2, 3]
    assert subject.events(subject.site())


# Plans and the command line


def test_settings_of_a_recipe() -> None:
    plan = load(UP)
    assert plan.server.upcycle is not None
    assert (plan.local.proximal, plan.server.upcycle.damping) == (0.1, 0.04)
    assert load(plan.to_toml()) == plan
    other = load({**SMALL, "recipe": "fedadam"}, ["server.upcycle.factor=0.5"])
    assert other.server.optimizer == "adam"
    assert other.server.upcycle is not None
    with pytest.raises(PlanError, match="damping"):
        load({**SMALL, "server": {"upcycle": {"lambda": 0.1}}})


def test_check_says_what_is_free(tmp_path: Path) -> None:
    plan = private("dp-sgd", 6, server=FREE)
    said = checked(plan, tmp_path)
    assert "6 rounds, 3 of them by the coordinator alone" in said
    assert "asked 3 times" in said
    assert "every round trains: server.upcycle" in said
    facts = json.loads(checked(plan, tmp_path, "--json"))
    assert (facts["rounds"], facts["training_rounds"]) == (6, 3)
    assert facts["utility"]["preserved"] is False


def test_the_report_says_what_was_free(tmp_path: Path) -> None:
    run = cupola.run(UP, tmp_path / "run", settings=["rounds=4"])
    text = (run.folder / "report.html").read_text()
    assert "of 4 planned; 2 without sites" in text
    assert "4 in the last training round" in text


def test_the_twin_trains_as_often_as_the_sites(tmp_path: Path) -> None:
    run = go(tmp_path / "run", "twin=true", plan=UP)
    lines = (run.folder / "twin/history.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3, 4]


def test_a_partial_table_keeps_the_rest_of_its_recipes():
    """What a recipe sets in a nested table stays, unless the plan names its alternative."""
    plan = load({**SMALL, "recipe": "upcycled-fedprox"}, ["server.upcycle.adaptive=true"])
    assert (plan.server.upcycle.damping, plan.server.upcycle.adaptive) == (0.04, True)
    given = {"server": {"upcycle": {"factor": 0.5}}}
    other = load({**SMALL, "recipe": "upcycled-fedprox", **given})
    assert (other.server.upcycle.factor, other.server.upcycle.damping) == (0.5, None)
    assert load(other.to_toml()) == other
