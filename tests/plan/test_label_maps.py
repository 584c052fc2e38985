"""Iterative label maps: made by public data or the sites' counts, again and again, and kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from choice_pairs import carry_out
from safetensors.numpy import load_file
from samples import SMALL
from test_run import checked, go, same, stop_after

import cupola
from cupola.analysis.folder_lock import read_lines
from cupola.analysis.plan_file import load
from cupola.audit import Subject
from cupola.audit.membership import membership_audit
from cupola.data import Dataset
from cupola.engines import InProcess
from cupola.errors import FederationError, PlanError
from cupola.federation import Question
from cupola.federation.federation import Total
from cupola.federation.program import State, driven
from cupola.nn.reprogram import frequent_labels
from cupola.pages.folder import open_run
from cupola.training import build
from cupola.training.analysis import TrainingAnalysis
from cupola.training.label_maps import TASK
from cupola.training.label_section import label_section
from cupola.training.workspace import Workspace

DP = {"mechanism": "dp-sgd", "noise_multiplier": 0.5}
MAP = "map/output.index"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that has learnt a little."""
    small = {**SMALL, "rounds": 1, "model": {"name": "mlp", "hidden": [12]}}
    return str(go(tmp_path_factory.mktemp("source") / "run", plan=small).folder)


def plan(source: str, public: bool = True, **more: Any) -> dict[str, Any]:
    split = {"public_validation": 0.1} if public else {}
    options = {key: more.pop(key) for key in ("per_class", "least_inner") if key in more}
    return {
        **SMALL,
        "rounds": 5,
        "data": {
            "name": "digits",
            "test": 0.1,
            "partition": {"kind": "iid", "sites": 3, "samples_per_site": 40, **split},
        },
        "model": {
            "name": "pretrained", "source": source, "adapt": "labels", "relabel": 2, **options,
        },
        "local": {"lr": 20.0, "batch_size": 10, "work": "batches", "batches": 2},
        **more,
    }  # fmt: skip


def steps(given: dict[str, Any]) -> Iterator[tuple[Any, Any, State, State]]:
    """A training step by step: its host, its program, and the states before and after."""
    chosen = load(given)
    host = build.host(chosen)
    program = build.training(chosen, host)
    before = program.start()
    with InProcess(host, seed=chosen.seed, workers=1) as federation:
        for after in driven(program, federation, before):
            yield host, program, before, after
            before = after


def by_hand(problem: Any, arrays: dict[str, np.ndarray], data: list[Dataset], many: int) -> Any:
    """The map of a model, one example after the other."""
    space = Workspace(problem)
    space.load(arrays)
    counts = np.zeros((10, 10))
    for part in data:
        for i in range(len(part)):
            x, y = space.batch(part, slice(i, i + 1))
            counts[int(y), int(space.module.features(x).argmax())] += 1  # type: ignore[operator]
    return frequent_labels(counts, many)


@pytest.mark.parametrize("public", [True, False])
def test_maps_are_those_of_the_examples_taken_one_by_one(source: str, public: bool) -> None:
    found = []
    for host, program, before, after in steps(plan(source, public)):
        if after.values.get("mapped") == before.values.get("mapped"):
            assert np.array_equal(after.arrays[MAP], before.arrays[MAP])
            continue
        held = [host.data(i).train for i in range(len(host))]
        held = [program.public["validation"]] if public else held
        expected = by_hand(program.problem, before.arrays, held, 1)
        assert after.arrays[MAP].tolist() == expected
        found.append((after.values["mapped"], expected))
    assert [round for round, _ in found] == [1, 3, 5]
    assert found[1][1] != found[0][1], "the border moved them"


def test_several_classes_and_a_trained_size_go_with_it(source: str, tmp_path: Path) -> None:
    few = {"name": "digits", "partition": {"kind": "iid", "sites": 3, "only": [0, 1, 2, 3]}}
    run = go(tmp_path / "run", plan=plan(source, data=few, per_class=2, least_inner=4, rounds=2))
    saved = load_file(run.folder / "model.safetensors")
    assert saved["output.index"].shape == (4, 2)
    assert saved["place.scale"].shape == (1,)


def test_the_saved_model_has_the_map_that_it_was_trained_with(source: str, tmp_path: Path) -> None:
    run = go(tmp_path / "run", plan=plan(source))
    saved = load_file(run.folder / "model.safetensors")
    assert set(saved) == {"border.theta", "output.index"}
    model = run.model()
    assert np.array_equal(model.output.index.numpy(), saved["output.index"])
    data = build.federated_data(run.plan).public["test"]
    right = (model(data.inputs()).argmax(1) == data.y).float().mean()
    assert float(right) == pytest.approx(run.history[-1]["test"]["accuracy"])
    told = {r["round"]: r["labels_moved"] for r in run.history if "labels_moved" in r}
    assert set(told) == {1, 3, 5}
    assert all(0 <= moved <= 10 for moved in told.values())


@pytest.mark.parametrize("public", [True, False])
def test_a_run_that_was_stopped_goes_on_with_its_map(
    source: str, public: bool, tmp_path: Path
) -> None:
    given, saving = plan(source, public, rounds=4), "checkpoint_seconds=0"
    go(tmp_path / "whole", saving, plan=given)
    with pytest.raises(SystemExit):
        go(tmp_path / "parts", saving, plan=given, progress=stop_after(3))
    cupola.resume(tmp_path / "parts", report=False)
    same(tmp_path / "whole", tmp_path / "parts")


def test_masked_counts_give_the_same_maps_and_are_booked(source: str, tmp_path: Path) -> None:
    given = plan(source, public=False, rounds=3)
    plain = go(tmp_path / "plain", plan=given)
    hidden = go(tmp_path / "hidden", plan={**given, "sum": "masked"})
    for run in (plain, hidden):
        entries = [e for e in read_lines(run.folder / "ledger.jsonl") if e["task"] == TASK]
        assert len(entries) == 2
        assert "how often the source takes training examples" in entries[0]["reveals"]
    index = [load_file(r.folder / "model.safetensors")["output.index"] for r in (plain, hidden)]
    assert np.array_equal(*index)
    said = checked({**given, "sum": "masked"}, tmp_path)
    assert "mapped anew before every 2 training rounds, by counts that the sites add up" in said
    assert "totals over sites of how often the source takes examples of each class" in said


@pytest.mark.parametrize(
    "more",
    [
        ("data.partition.public_validation=0.1", "privacy.mechanism=dp-sgd",
         "privacy.noise_multiplier=1", "sum=masked"),
        ("recipe=upcycled-fedavg", "rounds=6", "model.relabel=1"),
        ("personalise.rounds=1", "personalise.methods=['finetune','scratch','ditto']",
         "data.partition.validation=0.2", "data.partition.test=0.2", "evaluation.best=true",
         "local.lr=0.5"),
        ("evaluation.on=both", "data.partition.test=0.2", "sum=masked", "sum.protocol=pairwise"),
    ],
)  # fmt: skip
def test_it_goes_with_the_rest_as_foreseen(
    source: str, more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("choice_pairs.BASE", plan(source, public=False))
    carry_out(list(more), tmp_path / "run")


def test_the_best_model_is_kept_with_its_own_map(source: str) -> None:
    judge = {"best": True, "metric": "accuracy"}
    for _, training, before, after in steps(plan(source, evaluation=judge)):
        best = after.values.get("best", {}).get("round")
        if best is not None and best == after.values["round"] != before.values["round"]:
            kept, index = best, after.arrays[MAP]
        program, state = training, after
    assert program.model(state)["output.index"].tolist() == index.tolist()
    assert kept < 5, "the last round is not the best, or this shows nothing"


def test_sites_in_one_computation_have_the_map_of_the_round(source: str, tmp_path: Path) -> None:
    given = plan(source, public=False, recipe="fedfgd", local={"lr": 20.0})
    files = [
        go(tmp_path / mode, f"engine.mode={mode}", plan=given).folder / "model.safetensors"
        for mode in ("one-by-one", "together")
    ]
    one, other = map(load_file, files)
    assert np.array_equal(one["output.index"], other["output.index"])
    assert np.allclose(one["border.theta"], other["border.theta"], atol=1e-4)


def test_the_centralised_twin_maps_its_labels_too(source: str, tmp_path: Path) -> None:
    local = {"work": "gradient", "lr": 20.0}
    given = plan(source, public=False, recipe="fedfgd", twin=True, local=local, dtype="float64")
    run = go(tmp_path / "run", plan=given)
    assert run.result["twin"]["weight_difference"] < 1e-9
    twin = load_file(run.folder / "twin/model.safetensors")["output.index"]
    assert np.array_equal(twin, load_file(run.folder / "model.safetensors")["output.index"])


def test_where_nobody_answers_the_map_stays(source: str) -> None:
    chosen = load(plan(source, public=False))
    program = build.training(chosen)
    state = program.start()
    after = program.answer(state, Total())
    assert np.array_equal(after.arrays[MAP], state.arrays[MAP])
    assert after.values["mapped"] == 1


@pytest.mark.parametrize(
    ("index", "dtype"),
    [([[0]] * 10, np.int64), ([[i + 3] for i in range(10)], np.int64), ([[0]], np.int64),
     ([[-1 - i] for i in range(10)], np.int64), ([[i] for i in range(10)], np.int32)],
)  # fmt: skip
def test_a_crafted_map_is_refused_at_the_site(source: str, index: Any, dtype: Any) -> None:
    space = Workspace(build.problem(load(plan(source))))
    arrays = space.arrays()
    with pytest.raises(FederationError, match="the map of labels"):
        space.load({**arrays, MAP: np.array(index, dtype)})
    with pytest.raises(FederationError, match="the map of labels"):
        space.load({name: array for name, array in arrays.items() if name != MAP})


def test_a_site_answers_what_its_plan_asks(source: str) -> None:
    asked = Question(TASK)
    assert TrainingAnalysis(load(plan(source, public=False))).allows(asked) is None
    assert TASK in TrainingAnalysis(load(plan(source, public=False))).tasks
    given = plan(source)
    given["model"] = {**given["model"], "relabel_by": "public"}
    by_public = TrainingAnalysis(load(given))
    assert TASK not in by_public.tasks
    assert by_public.allows(asked) is not None
    more = Question(TASK, options={"split": "test"})
    assert TrainingAnalysis(load(plan(source, public=False))).allows(more) is not None


@pytest.mark.parametrize(
    ("change", "model", "said"),
    [
        ({"privacy": DP}, {}, "protects nothing but updates; make the map from public data"),
        ({}, {"relabel_by": "public"}, "needs public data"),
        ({"recipe": "ditto", "local": {"lr": 0.1}}, {}, "a model for each"),
        ({}, {"adapt": "map"}, "a map of labels that is not trained"),
        ({}, {"labels": list(range(10))}, r"model\.labels fixes"),
        ({}, {"relabel": None, "relabel_by": "sites"}, r"set model\.relabel"),
        ({}, {"relabel": 0}, r"model\.relabel = 0"),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_asked(
    source: str, change: dict[str, Any], model: dict[str, Any], said: str
) -> None:
    given = plan(source, public=False, **change)
    given["model"] = {k: v for k, v in {**given["model"], **model}.items() if v is not None}
    with pytest.raises(PlanError, match=said):
        build.training(load(given))


def test_private_plans_take_public_data(source: str, tmp_path: Path) -> None:
    given = plan(source, privacy=DP)
    run = go(tmp_path / "run", "rounds=2", plan=given)
    assert not [e for e in read_lines(run.folder / "ledger.jsonl") if e["task"] == TASK]
    fixed = {**given, "model": {**given["model"], "labels": list(range(10))}}
    del fixed["model"]["relabel"]
    without = go(tmp_path / "fixed", "rounds=2", plan=fixed)
    assert run.result.privacy.epsilon == without.result.privacy.epsilon
    assert "which asks nobody" in checked(given, tmp_path)


def test_the_report_shows_the_map(source: str, tmp_path: Path) -> None:
    run = go(tmp_path / "run", "rounds=3", plan=plan(source))
    shown = label_section(open_run(run.folder))
    assert "Chosen 2 times as the border learnt" in shown
    assert shown.count("<tr>") == 11


def test_an_audit_repeats_it_with_the_final_map(source: str, tmp_path: Path) -> None:
    run = go(tmp_path / "run", plan=plan(source, rounds=2))
    subject = Subject.open(run.folder, 1)
    saved = load_file(run.folder / "model.safetensors")["output.index"]
    assert all(np.array_equal(model[MAP], saved) for model in subject.models)
    assert subject.question(1).task == "train"
    found = membership_audit(subject, shadows=4, seed=0)
    assert found["likelihood_ratio"] is not None
