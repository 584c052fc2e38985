"""Plans whose sums are masked: every method runs, ends where it ends with plain sums, resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choice_pairs import NEEDS
from safetensors.numpy import load_file
from samples import SMALL
from test_run import forked, go, kill_often, same, spawned, stop_after

from cupola.analysis.folder_lock import read_lines
from cupola.analysis.plan_file import load
from cupola.errors import FederationError, PlanError
from cupola.training import build
from cupola.training.changing_sites import may_change
from cupola.training.check import facts
from cupola.training.disclosure import learned
from cupola.training.forecast import foresee
from cupola.training.recipes import RECIPES

MASKED = {**SMALL, "sum": "masked"}


def models(*folders: Path) -> list[dict[str, np.ndarray]]:
    return [load_file(folder / "model.safetensors") for folder in folders]


def compare(one: Path, other: Path, within: float = 1e-6) -> None:
    mine, theirs = models(one, other)
    for name, array in mine.items():
        np.testing.assert_allclose(array, theirs[name], rtol=0, atol=within)


@pytest.mark.parametrize("recipe", sorted(RECIPES))
def test_every_recipe_ends_where_it_ends_with_plain_sums(tmp_path: Path, recipe: str) -> None:
    settings = ["rounds=3", f"recipe={recipe}", *NEEDS.get(recipe, ())]
    if RECIPES[recipe].privacy:
        settings += ["privacy.noise_multiplier=0.5"]
    run = go(tmp_path / "masked", *settings, plan=MASKED)
    if RECIPES[recipe].sum:  # its noise is made for masked sums
        with pytest.raises(PlanError, match="masked"):
            go(tmp_path / "plain", *settings, plan={**MASKED, "sum": "plain"})
    else:
        go(tmp_path / "plain", *settings, "engine.mode=one-by-one")
        compare(tmp_path / "plain", tmp_path / "masked")
    ledger = list(read_lines(run.folder / "ledger.jsonl"))
    assert {e["kind"] for e in ledger} == {"sum", "unmask"}
    assert all("masked" in e["protection"] for e in ledger if e["kind"] == "sum")


@pytest.mark.parametrize("mechanism", ["output", "objective"])
def test_convex_mechanisms_run_masked(tmp_path: Path, mechanism: str) -> None:
    own = "privacy.noise_multiplier=0.5" if mechanism == "output" else "privacy.answer_epsilon=4"
    settings = [f"privacy.mechanism={mechanism}", own, "local.proximal=0.1", "rounds=2"]
    settings += ["privacy.neighbours=replace-one"]
    go(tmp_path / "plain", *settings, "engine.mode=one-by-one")
    go(tmp_path / "masked", *settings, plan=MASKED)
    compare(tmp_path / "plain", tmp_path / "masked")


def test_evaluation_at_sites_is_masked_and_exact(tmp_path: Path) -> None:
    settings = ["rounds=2", "data.partition.test=0.3", "evaluation.on=both", "evaluation.auroc=10"]
    plain = go(tmp_path / "plain", *settings, "engine.mode=one-by-one").history
    masked = go(tmp_path / "masked", *settings, plan=MASKED).history
    for one, other in zip(plain, masked, strict=True):
        assert one["sites_test"]["accuracy"] == other["sites_test"]["accuracy"]
        assert one["sites_test"]["auroc"] == other["sites_test"]["auroc"]
        assert one["samples"] == other["samples"]


@pytest.mark.parametrize(
    "settings",
    [
        ["participation.kind=poisson", "participation.fraction=0.5"],
        ["participation.kind=fraction", "participation.count=4", "participation.dropouts=0.3"],
        ["model=mlp", "sum.bits=32", "sum.samples=1000", "sum.change=4"],
        ["sum.protocol=pairwise", "participation.dropouts=0.1"],
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path: Path, settings: list[str]) -> None:
    settings = [*settings, "rounds=9", "checkpoint_seconds=1000", "data.partition.sites=8"]
    go(tmp_path / "whole", *settings, plan=MASKED)
    for round in (2, 5):
        with pytest.raises(SystemExit):
            go(tmp_path / "b", *settings, plan=MASKED, resume=True, progress=stop_after(round))
    go(tmp_path / "b", *settings, plan=MASKED, resume=True)
    same(tmp_path / "whole", tmp_path / "b")
    go(tmp_path / "b", *settings, plan=MASKED, overwrite=True)  # a new study, with its own steps


@pytest.mark.slow
def test_kill_nine_with_masked_sums(tmp_path: Path) -> None:
    kill_often(tmp_path, forked, ["sum=masked", "rounds=100", "recipe=fedcmb"], 2, 1)


@pytest.mark.slow
def test_kill_nine_with_parties_in_processes(tmp_path: Path) -> None:
    settings = ["sum=masked", "rounds=8", "engine.kind=processes", "data.partition.sites=3"]
    kill_often(tmp_path, spawned, settings, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_separate_processes_give_the_same_model(tmp_path: Path, protocol: str) -> None:
    settings = ["rounds=2", "data.partition.sites=3", f"sum.protocol={protocol}"]
    go(tmp_path / "one", *settings, plan=MASKED)
    go(tmp_path / "each", *settings, "engine.kind=processes", plan=MASKED)
    compare(tmp_path / "one", tmp_path / "each", 0.0)
    assert (tmp_path / "each/compensator").is_dir() == (protocol == "compensator")


@pytest.mark.parametrize("recipe", ["scaffold", "dp-sgd", "dp-fedavg-distributed"])
def test_pairwise_masks_end_where_the_compensator_ends(tmp_path: Path, recipe: str) -> None:
    settings = [f"recipe={recipe}", "rounds=3", "data.partition.test=0.2", "evaluation.on=both"]
    settings += ["privacy.noise_multiplier=0.5"] if RECIPES[recipe].privacy else []
    go(tmp_path / "third", *settings, plan=MASKED)
    go(tmp_path / "pairs", *settings, "sum.protocol=pairwise", plan=MASKED)
    compare(tmp_path / "third", tmp_path / "pairs", 0.0)


@pytest.mark.parametrize("protocol", ["compensator", "pairwise"])
def test_the_bytes_are_known_before(tmp_path: Path, protocol: str) -> None:
    settings = ["rounds=3", "data.partition.test=0.2", "evaluation.on=both"]
    settings += [f"sum.protocol={protocol}"]
    cost = foresee(load(MASKED, settings))
    result = go(tmp_path / "run", *settings, plan=MASKED).result
    assert (cost.down, cost.up) == (result["bytes_down"], result["bytes_up"])


def test_what_each_party_learns() -> None:
    def told(**changes: Any) -> dict[str, str]:
        return dict(learned(build.training(load({**SMALL, **changes}))))

    assert "own updates" in told()["coordinator"]
    masked = told(sum="masked")
    assert "totals of updates over at least 3 sites" in masked["coordinator"]
    assert "no answer" in masked["compensator"]
    assert "own updates" in masked["coordinator with compensator"]
    assert "compensator" not in told(sum={"kind": "masked", "protocol": "pairwise"})
    assert "other site's" in told(sum={"kind": "masked", "minimum": 2})["one of two sites"]


def test_what_cannot_be_masked_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"stacked.*masked"):
        load(MASKED, ["engine.mode=stacked"])
    with pytest.raises(PlanError, match=r"sum.minimum = 3, but there are 2 sites"):
        go(tmp_path / "two", "data.partition.sites=2", plan=MASKED)
    with pytest.raises(FederationError, match=r"sum\.samples"):
        go(tmp_path / "many", "sum.samples=3", plan=MASKED)
    with pytest.raises(FederationError, match=r"sum\.change"):
        go(tmp_path / "far", "sum.change=1e-9", plan=MASKED)


def test_sites_that_change_are_agreed_to_or_refused_before() -> None:
    drawn = {**MASKED, "participation": {"kind": "fraction", "count": 4}}
    assert may_change(load(drawn))
    assert not may_change(load(MASKED))
    told = [line["learns"] for line in facts(load(drawn))["parties"]]
    assert any("differences of totals can tell about single sites" in line for line in told)
    told = [line["learns"] for line in facts(load(MASKED))["parties"]]
    assert not any("differences of totals" in line for line in told)
    with pytest.raises(PlanError, match=r"sum.changes = false.*participation.kind = 'fraction'"):
        load({**drawn, "sum": {"kind": "masked", "changes": False}})
    noised = {**drawn, "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0}}
    told = [line["learns"] for line in facts(load(noised))["parties"]]
    assert any("no more than the epsilon of 'dp-sgd' allows" in line for line in told)


def test_sites_without_held_out_data_stop_a_run_before_it_begins() -> None:
    """Three of eight have none: totals of their counts, with and without, would tell of three."""
    few = {"kind": "quantity", "sigma": 4.0, "sites": 8, "test": 0.2}
    plan = {
        **MASKED,
        "sum": {"kind": "masked", "minimum": 4},
        "data": {"name": "digits", "partition": few},
        "evaluation": {"on": "sites", "train": True},
    }
    with pytest.raises(PlanError, match=r"has no such data.*sum.changes = true"):
        facts(load(plan))
    assert facts(load(plan, ["sum.changes=true"]))
