"""Plans that build on a source model: what is trained and sent, refusals, caches, finished runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from samples import SMALL, of_an_earlier_version
from test_run import checked, go
from tiny_sources import write
from typer.testing import CliRunner

import cupola
from cupola.analysis.plan_file import load
from cupola.cli import app
from cupola.errors import CupolaError, FederationError, PlanError
from cupola.training import build
from cupola.training.forecast import foresee
from cupola.training.frozen import CHECKSUM, SEED
from cupola.training.metrics import count
from cupola.training.workspace import Workspace

DP = {"mechanism": "dp-sgd", "noise_multiplier": 1.0}
BORDER, MAP = 3 * 16 * 16, 13 * 10
pytestmark = pytest.mark.usefixtures("source")


@pytest.fixture(scope="module")
def plan(source: str) -> dict[str, Any]:
    data = {"name": "digits", "partition": {"kind": "iid", "sites": 3, "public_validation": 0.5}}
    return {**SMALL, "rounds": 2, "data": data, "model": {"name": "pretrained", "source": source}}


def adapted(plan: dict[str, Any], adapt: str, **more: Any) -> dict[str, Any]:
    return {**plan, **more, "model": {**plan["model"], "adapt": adapt}}


@pytest.fixture(scope="module")
def done(plan: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("done") / "run"
    go(folder, plan={**plan, "privacy": DP})
    return folder


def test_only_border_and_map_are_trained_sent_and_kept(plan: dict[str, Any], done: Path) -> None:
    run = cupola.Run.open(done)
    assert run.result["trainable"] == BORDER + MAP < run.result["parameters"]
    saved = load_file(done / "model.safetensors")
    assert set(saved) == {"border.theta", "output.weight", "output.bias"}
    program = build.training(load(plan))
    state = program.start()
    assert SEED not in state.arrays
    assert state.arrays[CHECKSUM].shape == (16,)
    sent = foresee(load(plan)).per_site_up
    assert 4 * (BORDER + MAP) < sent < 4 * (BORDER + MAP) + 1000
    model = run.model()
    assert np.array_equal(model.border.theta.detach().numpy(), saved["border.theta"])


def test_a_finished_run_is_not_read_with_another_source(done: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", seed=3)
    copied = tmp_path / "copied"
    copied.mkdir()
    for file in done.iterdir():
        if file.is_file():
            (copied / file.name).write_bytes(file.read_bytes())
    of_an_earlier_version(copied)
    source = cupola.Run.open(done).plan.model.options["source"]
    text = (copied / "plan.toml").read_text()
    (copied / "plan.toml").write_text(text.replace(source, other))
    with pytest.raises(CupolaError, match="are not those that"):
        cupola.Run.open(copied).model()


def test_a_site_with_other_weights_is_refused_before_it_trains(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    state = build.training(load(plan)).start()
    other = {**plan, "model": {"name": "pretrained", "source": write(tmp_path / "o", seed=3)}}
    site = Workspace(build.problem(load(other)))
    with pytest.raises(FederationError, match="source model here is not the coordinator's"):
        site.load(state.arrays)
    bare = {name: array for name, array in state.arrays.items() if name != CHECKSUM}
    with pytest.raises(FederationError, match="another kind of part"):
        Workspace(build.problem(load(plan))).load(bare)
    crafted = {**state.arrays, "model/trunk.0.weight": np.zeros((6, 3, 3, 3), np.float32)}
    with pytest.raises(FederationError, match=r"'model/trunk.0.weight' is no trainable"):
        Workspace(build.problem(load(plan))).load(crafted)


def test_a_site_that_is_judged_first_trains_on_the_same_features(plan: dict[str, Any]) -> None:
    given = load(adapted(plan, "head"))
    site, data = Workspace(build.problem(given)), build.federated_data(given).site(0).train
    count(site, [data], {})
    assert not site.batch(data, slice(8))[0].is_inference()


@pytest.mark.parametrize("adapt", ["map", "head"])
def test_kept_features_give_what_inputs_give(
    plan: dict[str, Any], adapt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = adapted(plan, adapt, privacy=DP)
    go(tmp_path / "kept", plan=private)
    seen = []
    slow = Workspace.__init__

    def without(self: Workspace, *given: Any) -> None:
        slow(self, *given)
        seen.append(self._features)
        self._features = None

    monkeypatch.setattr(Workspace, "__init__", without)
    go(tmp_path / "slow", plan=private)
    assert all(features is not None for features in seen)
    kept, plain = (load_file(tmp_path / n / "model.safetensors") for n in ("kept", "slow"))
    assert set(kept) == {"output.weight", "output.bias"}
    for name, array in kept.items():
        assert np.allclose(array, plain[name], atol=1e-5)


def test_features_are_those_of_the_rows_asked_for(plan: dict[str, Any]) -> None:
    host = build.host(load(adapted(plan, "map")))
    space, data = host.workspace(), host.data(0).train
    index = torch.tensor([5, 2, 9])
    x, y = space.batch(data, index)
    assert torch.allclose(x, space.module.features(data.inputs(index)), atol=1e-5)
    assert torch.equal(y, data.y[index])
    moved = replace(data, transform=lambda x, _: x + 1)
    seen, _ = space.batch(moved, index, torch.Generator())
    assert seen.shape == (3, 1, 8, 8)  # augmented inputs have no features of their own


def test_copies_of_private_examples_go_through_the_source(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    data = {**plan["data"], "augment": ["flip"]}
    private = {**DP, "augmentations": 2}
    go(tmp_path / "run", plan=adapted({**plan, "data": data, "rounds": 1}, "map", privacy=private))
    assert cupola.Run.open(tmp_path / "run").status == "finished"


@pytest.mark.parametrize("adapt", ["labels", "full"])
def test_the_others_train_privately_too(plan: dict[str, Any], adapt: str, tmp_path: Path) -> None:
    go(tmp_path / "run", plan=adapted(plan, adapt, privacy=DP))
    saved = load_file(tmp_path / "run" / "model.safetensors")
    assert ("border.theta" in saved) == (adapt == "labels")
    assert cupola.Run.open(tmp_path / "run").model() is not None


def test_reprogramming_goes_with_masked_sums_and_upcycling(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    more = {"sum": "masked", "server": {"upcycle": {"factor": 0.5}}, "local": {"proximal": 0.5}}
    go(tmp_path / "run", plan={**plan, **more, "rounds": 2})
    assert cupola.Run.open(tmp_path / "run").status == "finished"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"trainable": {"only": ["output"]}}, "overwrite the source model's weights"),
        (
            {
                "privacy": {"mechanism": "output", "epsilon": 1, "neighbours": "replace-one"},
                "local": {"proximal": 0.1},
            },
            "linear",
        ),
    ],
)
def test_what_has_no_bound_or_no_meaning_is_refused(
    plan: dict[str, Any], change: dict[str, Any], said: str
) -> None:
    with pytest.raises(PlanError, match=said):
        build.training(load({**plan, **change}))


def test_data_that_do_not_fit_are_refused(plan: dict[str, Any]) -> None:
    twice = {**plan["data"], "augment": [{"normalise": {"mean": 0.5, "std": 0.5}}]}
    with pytest.raises(PlanError, match="normalises images"):
        build.problem(load({**plan, "data": twice}))
    private = {**plan["data"], "partition": {"kind": "iid", "sites": 3}}
    with pytest.raises(PlanError, match="needs public data"):
        build.problem(load(adapted({**plan, "data": private}, "labels"))).build()


def test_check_says_what_is_trained_and_where_the_rest_comes_from(
    plan: dict[str, Any], tmp_path: Path
) -> None:
    said = checked(plan, tmp_path)
    assert f"{BORDER + MAP:,}" in said
    assert "at every site (checksum" in said


def test_the_command_says_which_sources_are_here_and_how_to_get_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUPOLA_DATA", raising=False)
    monkeypatch.setenv("CUPOLA_WEIGHTS", str(tmp_path))
    (tmp_path / "resnet18.pth").touch()
    found = json.loads(CliRunner().invoke(app, ["sources", "--json"]).output)
    here = {row["name"]: row["weights"] for row in found}
    assert (here["resnet18"], here["resnet34"]) == ("here", "missing")
    heads = {row["name"]: row["head of 10"] for row in found}
    assert heads["efficientnet-lite0"] == 12_810
    assert {heads[f"resnet{n}"] for n in (18, 34)} == {5_130}
    assert {heads[n] for n in ("resnet50", "resnet101", "resnet152", "resnext50")} == {20_490}
    said = CliRunner().invoke(app, ["sources"]).output
    assert "resnet34, resnet50-torchvision, resnext101, resnext50: save torchvision's" in said


def test_the_border_has_its_own_share_of_the_clip(plan: dict[str, Any], tmp_path: Path) -> None:
    """Jointly clipped it has next to none. What is promised stays as it is."""
    small = {**plan, "rounds": 1, "privacy": {"mechanism": "dp-sgd", "noise_multiplier": 0.05}}
    moved, told = [], []
    for name, shares in (("jointly", {}), ("apart", {"border": 0.5})):
        chosen = {**small, "privacy": {**small["privacy"], "clip": 0.1, "clip_shares": shares}}
        run = go(tmp_path / name, plan=chosen)
        start = build.training(load(chosen)).start().arrays["model/border.theta"]
        saved = load_file(run.folder / "model.safetensors")["border.theta"]
        moved.append(float(np.linalg.norm(saved - start)))
        told.append(run.result.privacy.epsilon)
    assert moved[1] > 2 * moved[0] > 0
    assert told[0] == told[1]


def test_the_report_shows_the_border(done: Path) -> None:
    from cupola.pages.folder import open_run
    from cupola.training.border_picture import border_section

    shown = border_section(open_run(done))
    inner = round(200 / 224 * 16)
    assert shown.count("<rect") == 16 * 16 - inner * inner
    assert "The trained border" in shown
