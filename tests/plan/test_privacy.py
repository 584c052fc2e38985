"""Plans with privacy: what they promise, spend, refuse, and leave in the run folder."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from choice_pairs import BASE, CHOICES
from samples import SMALL
from test_run import go, history, same

import cupola
from cupola.analysis.plan_file import load
from cupola.errors import DataError, PlanError
from cupola.privacy.budget import Book
from cupola.training import build
from cupola.training.forecast import foresee
from cupola.training.spending import promised

PRIVATE = {
    **SMALL,
    "recipe": "dp-sgd",
    "privacy": {"noise_multiplier": 1.5},
    "local": {"batch_size": 8, "lr": 0.5},
}


def changed(**privacy: Any) -> dict[str, Any]:
    return {**PRIVATE, "privacy": {**PRIVATE["privacy"], **privacy}}


def test_a_run_ends_with_what_it_promised(tmp_path: Path) -> None:
    run = go(tmp_path / "run", "rounds=4", plan=PRIVATE)
    spent = run.result["privacy"]
    plan = load(PRIVATE, ["rounds=4"])
    host = build.host(plan)
    promise = promised(build.training(plan, host), host)
    assert promise is not None
    assert spent["epsilon"] == pytest.approx(promise.epsilon, rel=1e-9)
    assert spent["noise"] == 1.5
    assert "not valid for release" in spent["status"]
    assert spent["course"][-1][1] == pytest.approx(promise.epsilon)
    lines = [json.loads(line) for line in (run.folder / "ledger.jsonl").read_text().splitlines()]
    assert {line["protection"] for line in lines} == {"dp-sgd, noise 1.5, clip 1"}
    assert len(Book.read(run.folder / "privacy.jsonl").histories()) >= 1


@pytest.mark.parametrize("mechanism", ["dp-sgd", "central", "dp-ftrl", "output"])
def test_transforms_cost_no_epsilon(mechanism: str, tmp_path: Path) -> None:
    """They come after clip and noise, or keep to the clip."""
    own = CHOICES["mechanism"][mechanism]
    plain = foresee(load(BASE, own)).privacy
    assert plain is not None
    assert plain["epsilon"] > 0
    for transforms in ("both ways", "a part, quantised"):
        settings = [*own, *CHOICES["transforms"][transforms]]
        assert foresee(load(BASE, settings)).privacy == plain
    run = go(tmp_path / "run", *settings, plan=BASE)
    assert run.result["privacy"]["epsilon"] == pytest.approx(plain["epsilon"], abs=1e-12)


def test_a_target_gives_the_noise(tmp_path: Path) -> None:
    plan = {**PRIVATE, "privacy": {"epsilon": 2.0}}
    spent = go(tmp_path / "run", "rounds=4", plan=plan).result["privacy"]
    assert 1.98 < spent["epsilon"] <= 2.0
    more = go(tmp_path / "more", "rounds=8", plan=plan).result["privacy"]
    assert more["noise"] > spent["noise"]


@pytest.mark.parametrize("recipe", ["dp-sgd", "dp-fedavg", "dp-ftrl"])
def test_a_stopped_private_run_goes_on_bit_for_bit(tmp_path: Path, recipe: str) -> None:
    settings = ["rounds=6", f"recipe={recipe}", "checkpoint_seconds=0"]
    whole = go(tmp_path / "whole", *settings, plan=PRIVATE)

    def stop(progress: Any) -> None:
        if progress.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "parts", *settings, plan=PRIVATE, progress=stop)
    cupola.resume(tmp_path / "parts", report=False)
    same(tmp_path / "whole", tmp_path / "parts")
    assert whole.result["privacy"] == cupola.Run.open(tmp_path / "parts").result["privacy"]
    books = [Book.read(tmp_path / name / "privacy.jsonl") for name in ("whole", "parts")]
    assert books[0].histories() == books[1].histories()


def test_what_a_crash_lost_is_repeated_without_another_charge(tmp_path: Path) -> None:
    """The book is ahead of the checkpoint: those steps were paid for and are asked again."""
    settings = ["rounds=6", "checkpoint_seconds=1000"]
    go(tmp_path / "whole", *settings, plan=PRIVATE)

    def die(progress: Any) -> None:
        if progress.round == 3:
            raise RuntimeError("power cut")

    with pytest.raises(RuntimeError):
        go(tmp_path / "parts", *settings, plan=PRIVATE, progress=die)
    shutil.rmtree(tmp_path / "parts" / "checkpoint")  # an exception saves it; a power cut does not
    (tmp_path / "parts" / "result.json").unlink()
    assert len(Book.read(tmp_path / "parts" / "privacy.jsonl").histories()) >= 1
    cupola.resume(tmp_path / "parts", report=False)
    same(tmp_path / "whole", tmp_path / "parts")
    books = [Book.read(tmp_path / name / "privacy.jsonl") for name in ("whole", "parts")]
    assert books[0].histories() == books[1].histories()


def test_separate_sites_answer_and_spend_alike(tmp_path: Path) -> None:
    settings = ["rounds=2", "data.partition.sites=2"]
    one = go(tmp_path / "one", *settings, "engine.mode=one-by-one", plan=PRIVATE)
    other = go(tmp_path / "other", *settings, "engine.kind=processes", plan=PRIVATE)
    models = [(run.folder / "model.safetensors").read_bytes() for run in (one, other)]
    assert models[0] == models[1]
    assert one.result["privacy"]["epsilon"] == other.result["privacy"]["epsilon"]
    assert len(list((other.folder / "sites").glob("privacy-*.jsonl"))) == 2


# Budgets


def test_a_budget_stops_answers_in_time(tmp_path: Path) -> None:
    plan = changed(noise_multiplier=1.0, budget={"epsilon": 0.8})
    run = go(tmp_path / "run", "rounds=30", "evaluation.every=30", plan=plan)
    assert 0.75 < run.result["privacy"]["epsilon"] <= 0.8
    refused = [r["failed"] for r in history(run.folder)]
    assert refused[0] == {}
    assert any("privacy budget of epsilon 0.8" in code for code in refused[-1])
    assert history(run.folder)[-1]["sites"] == 0


def test_runs_of_one_study_share_a_budget_and_other_studies_are_refused(tmp_path: Path) -> None:
    book = tmp_path / "spent.jsonl"
    plan = changed(
        noise_multiplier=1.0, budget={"epsilon": 3.0, "file": str(book), "study": "heart"}
    )
    first = go(tmp_path / "first", "rounds=4", plan=plan).result["privacy"]["epsilon"]
    second = go(tmp_path / "second", "rounds=4", plan=plan).result["privacy"]["epsilon"]
    assert first < second <= 3.0
    before = book.read_bytes()
    lung = changed(
        noise_multiplier=1.0, budget={"epsilon": 3.0, "file": str(book), "study": "lung"}
    )
    with pytest.raises(DataError, match="belongs to the study 'heart'"):
        go(tmp_path / "third", "rounds=4", plan=lung)
    assert book.read_bytes() == before


def test_unprotected_answers_are_refused_before_anything_is_spent(tmp_path: Path) -> None:
    plan = changed(budget={"epsilon": 3.0})
    for settings, told in (
        (["local.weighting=samples"], "number of samples"),
        (["evaluation.on=sites", "data.partition.test=0.2"], "hold out for testing"),
    ):
        with pytest.raises(PlanError, match=told):
            go(tmp_path / "run", *settings, plan=plan, overwrite=True)
        assert not (tmp_path / "run" / "privacy.jsonl").exists()


# Bad input


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("privacy.epsilon=-1", "privacy.epsilon"),
        ("privacy.epsilon=0", "privacy.epsilon"),
        ("privacy.delta=0", "privacy.delta"),
        ("privacy.delta=1.5", "privacy.delta"),
        ("privacy.clip=0", "privacy.clip"),
        ("privacy.clip=-2", "privacy.clip"),
        ("privacy.noise_multiplier=-1", "privacy.noise_multiplier"),
        ("privacy.noise_multiplier='much'", "privacy.noise_multiplier"),
        ("privacy.quantile=1.2", "privacy.quantile"),
        ("privacy.budget.epsilon=0", "privacy.budget.epsilon"),
        ("privacy.budget.delta=7", "privacy.budget.delta"),
        ("privacy.mechanism=dpsgd", "privacy.mechanism"),
        ("privacy.epsilom=3", "did you mean"),
        ("privacy.epsilon=3", "either epsilon"),
        ("privacy.restart=4", "dp-ftrl"),
        ("participation.kind=rotation", "needs count"),
    ],
)
def test_values_out_of_range_are_refused_by_name(setting: str, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        load(PRIVATE, [setting])


def test_a_mechanism_without_strength_says_what_it_needs() -> None:
    with pytest.raises(PlanError, match="epsilon"):
        load({**SMALL, "recipe": "dp-sgd"})


def test_a_run_that_clips_without_noise_can_be_opened(tmp_path: Path) -> None:
    run = go(tmp_path / "run", "rounds=1", plan=changed(noise_multiplier=0.0))
    again = cupola.Run.open(run.folder)
    assert again.status == "finished"
    assert again.result.privacy.epsilon == math.inf
