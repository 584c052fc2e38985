"""Objects in the place of a plan's names: the same run, the same folder, or a refusal in words."""
# ruff: noqa: ARG005

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import cupola
from cupola.base import held_objects
from cupola.data import load as load_data
from cupola.errors import CupolaError, DataError, PlanError
from cupola.nn.models import building
from cupola.training.methods import Method
from cupola.training.methods.feddyn import FedDyn

X = np.random.default_rng(0).random((60, 4)).astype(np.float32)
Y = (X[:, 0] > 0.5).astype(int)
SITES = {"partition": {"kind": "iid", "sites": 3}}
PLAN: dict[str, Any] = {"name": "own", "rounds": 3, "data": SITES, "checkpoint_seconds": 0}


class Net(nn.Module):
    def __init__(self, width: int = 5) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def hit(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return output.argmax(1) == y


def run(folder: Path, plan: Any = PLAN, **objects: Any) -> cupola.Run:
    return cupola.run(plan, folder, report=False, **{"model": Net, "data": (X, Y), **objects})


def measured(run: cupola.Run) -> list[dict[str, Any]]:
    return [{k: v for k, v in record.items() if k != "seconds"} for record in run.history]


def forget() -> None:
    """As in another process."""
    held_objects._HELD.clear()


def test_objects_give_the_run_that_names_give(tmp_path: Path) -> None:
    named = {**PLAN, "data": {"name": "digits", **SITES}, "model": "linear"}
    one = cupola.run(named, tmp_path / "named", report=False)
    linear = building._MODELS.find("linear")
    other = run(
        tmp_path / "own", data=load_data("digits"), model=linear, loss=nn.CrossEntropyLoss()
    )
    assert measured(one) == measured(other)
    files = [(r.folder / "model.safetensors").read_bytes() for r in (one, other)]
    assert files[0] == files[1]
    assert other.plan.data.name.startswith("object:digits#")


class Reader(nn.Module):
    """The mean of attended tokens' vectors, from tokens and mask (n, 2, T)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        ids, mask = x[:, 0], (x[:, 1] != 0)[..., None]
        return self.out((self.words(ids) * mask).sum(1) / mask.sum(1).clamp(min=1))


def test_tokenised_data(tmp_path: Path) -> None:
    ids = np.random.default_rng(1).integers(1, 10, (60, 6))
    mask = np.ones_like(ids)
    mask[::2, 4:] = 0
    fields = {"input_ids": ids.tolist(), "attention_mask": mask}
    one = run(tmp_path / "fields", model=Reader, data=(fields, Y))
    stacked = np.stack([ids, mask], 1)
    other = run(tmp_path / "stacked", model=Reader, data=(stacked, Y))
    assert one.status == "finished"
    assert measured(one) == measured(other)
    assert one.plan.data == other.plan.data


def test_a_loop_that_is_left_goes_on_bit_for_bit(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", metrics={"hit": hit})
    objects = {"model": Net, "data": (X, Y), "metrics": {"hit": hit}}
    for progress in cupola.iterate(PLAN, tmp_path / "left", **objects):  # type: ignore[arg-type]
        if progress.round == 2:
            break
    left = cupola.Run.open(tmp_path / "left")
    assert left.status == "stopped"
    assert left.result.reason == "left after round 2"
    forget()
    with pytest.raises(
        PlanError, match=r"model \(Net\).*data=\.\.\., model=\.\.\., metrics=\.\.\."
    ):
        cupola.resume(tmp_path / "left")
    assert cupola.Run.open(tmp_path / "left").status == "stopped"
    with pytest.raises(PlanError, match=r"begun with data\.name"):
        cupola.resume(tmp_path / "left", **{**objects, "data": (X + 1, Y)})  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"begun with model\.name"):
        cupola.resume(tmp_path / "left", **{**objects, "model": Net()})  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"begun with loss\.name = 'None'"):
        cupola.resume(tmp_path / "left", loss=nn.CrossEntropyLoss(), **objects)  # type: ignore[misc]
    (again,) = cupola.resume(tmp_path / "left", **objects)  # type: ignore[arg-type]
    assert measured(again) == measured(whole)
    files = [(r.folder / "model.safetensors").read_bytes() for r in (again, whole)]
    assert files[0] == files[1]
    model = again.model()
    assert isinstance(model, Net)
    forget()
    opened = cupola.Run.open(tmp_path / "left")
    assert opened.history == again.history
    with pytest.raises(CupolaError, match="pass it again"):
        opened.model()
    assert isinstance(cupola.Run.open(tmp_path / "left", model=Net, data=(X, Y)).model(), Net)


def test_other_initial_weights_are_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function's source does not say all: what it makes is compared, too."""
    monkeypatch.setattr(Net, "width", 5, raising=False)

    def make() -> nn.Module:
        return Net(Net.width)

    for _ in cupola.iterate(PLAN, tmp_path, model=make, data=(X, Y)):
        break
    monkeypatch.setattr(Net, "width", 6)
    with pytest.raises(
        PlanError, match=r"other objects than these: model \(make\): initial_weights"
    ):
        cupola.resume(tmp_path, model=make, data=(X, Y))
    monkeypatch.setattr(Net, "width", 5)
    (again,) = cupola.resume(tmp_path, model=make, data=(X, Y), report=False)
    assert again.status == "finished"


def test_the_folder_says_what_was_passed(tmp_path: Path) -> None:
    run(tmp_path, loss=nn.NLLLoss(), metrics={"hit": hit})
    told = json.loads((tmp_path / "objects.json").read_text())
    assert told["data"]["facts"]["train"] == 60
    assert set(told["model"]["classes"]) == {"Net"}
    assert told["loss"]["object"] == "NLLLoss"
    assert told["evaluation.metrics.hit"]["source"]
    assert '"object:Net#' in (tmp_path / "plan.toml").read_text()


class Halved(Method):
    share: float = 0.5

    def combine(self, round: Any, update: Any) -> Any:  # noqa: ARG002
        return {name: self.share * array for name, array in update.items()}, {}


def test_a_method_as_an_object(tmp_path: Path) -> None:
    half = run(tmp_path / "half", {**PLAN, "server": {"lr": 0.5}})
    own = run(tmp_path / "own", method=Halved())
    states = [r.model().state_dict() for r in (half, own)]
    assert all(torch.allclose(states[0][n], states[1][n], atol=1e-6) for n in states[0])
    plan = cupola.load(PLAN, model=Net, data=(X, Y), method=Halved(share=0.25))
    assert plan.method.name.startswith("object:Halved#")
    assert plan.method.options == {"share": 0.25}
    assert "own: object:Halved#" in str(cupola.check(plan))
    ours = cupola.load(PLAN, model=Net, data=(X, Y), method=FedDyn(alpha=0.1))
    assert ours.method.name == "feddyn"
    with pytest.raises(PlanError, match="is no method"):
        cupola.load(PLAN, method=3)


def test_own_metrics_are_sums_over_sites(tmp_path: Path) -> None:
    judged = {
        "name": "judged", "rounds": 1, "evaluation": {"on": "sites"},
        "data": {"partition": {"kind": "iid", "sites": 3, "test": 0.3}},
    }  # fmt: skip
    whole = run(tmp_path / "plain", judged, metrics={"hit": hit})
    last = whole.history[-1]["sites_test"]
    assert last["hit"] == last["accuracy"]
    masked = run(tmp_path / "masked", {**judged, "sum": "masked"}, metrics={"hit": hit})
    assert masked.history[-1]["sites_test"]["hit"] == pytest.approx(last["hit"], abs=1e-6)
    best = {**judged, "evaluation": {"on": "sites", "metric": "hit", "best": True}}
    best["data"] = {"partition": {"kind": "iid", "sites": 3, "test": 0.2, "validation": 0.2}}
    assert run(tmp_path / "best", best, metrics={"hit": hit}).history[-1]["sites_validation"]["hit"]


def test_history_as_a_frame(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    data = {"train": (X, Y), "test": (X, Y)}
    frame = run(tmp_path, data=data).history.frame()
    assert list(frame["round"]) == [1, 2, 3]
    assert frame["test.accuracy"].between(0, 1).all()


def test_sites_as_given(tmp_path: Path) -> None:
    sites = {"Bern": (X[:20], Y[:20]), "Rome": (X[20:], Y[20:])}
    made = run(tmp_path, {"name": "own", "rounds": 1}, data=sites)
    assert made.result.sites == 2
    with pytest.raises(PlanError, match=r"data\.partition would cut them again"):
        cupola.load(PLAN, data=sites)


def test_a_plan_with_objects_is_a_value() -> None:
    one = cupola.load(PLAN, model=Net, data=(X, Y))
    assert one == cupola.load(PLAN, model=Net, data=(X.copy(), Y.tolist()))
    assert one != cupola.load(PLAN, model=Net, data=(X, 1 - Y))
    assert cupola.load(one.to_toml()) == one
    swept = cupola.load({**PLAN, "grid": {"model.width": [2, 3]}}, model=Net, data=(X, Y))
    assert [plan.model.options["width"] for _, plan in swept.expand()] == [2, 3]


def test_check_takes_objects() -> None:
    found = cupola.check(PLAN, model=Net, data=(X, Y))
    assert found["model"]["parameters"] == 37
    assert "own: fedavg, 3 rounds" in str(found)


@pytest.mark.parametrize("kind", ["processes", "ray"])
def test_other_processes_are_refused(kind: str) -> None:
    with pytest.raises(PlanError, match=f"engine.kind = '{kind}'.*neither code nor pickles"):
        cupola.load({**PLAN, "engine": {"kind": kind}}, model=Net, data=(X, Y))


def test_real_sites_get_no_objects() -> None:
    from cupola.training.analysis import TrainingAnalysis

    plan = cupola.load(PLAN, model=Net, data=(X, Y))
    with pytest.raises(PlanError, match="no code crosses"):
        TrainingAnalysis(plan).require_real()


def no_rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum()


class Fixed(nn.Module):
    """What a user's mistake looks like: the forward pass is the function that was given."""

    def __init__(self, forward: Any, trained: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2), requires_grad=trained)
        self.own = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.own(x)


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"model": 3}, "model=3 is an int"),
    ({"model": "mpl"}, "did you mean 'mlp'"),
    ({"model": None}, "model=None"),
    ({"model": [nn.Linear(4, 2)]}, "is a list"),
    ({"model": nn.Identity()}, "no trainable parameters"),
    ({"model": nn.Linear(9, 2)}, "does not take inputs (3, 4) float32"),
    ({"model": nn.Linear(4, 1), "data": (X, Y + 1)}, "gives 1 scores, the data have 3 classes"),
    ({"model": lambda: 3}, "gave a int"),
    ({"model": lambda depth: Net()}, "needs the option 'depth'"),
    ({"model": lambda: {}["x"]}, "making it fails: KeyError"),
    ({"model": Fixed(no_rows)}, "a row for each sample"),
    ({"model": Fixed(lambda x: [x])}, "gives list"),
    ({"model": Fixed(lambda x: x.nothing)}, "does not take inputs"),
    ({"model": Fixed(lambda x: x[:, :2], trained=False)}, "no trainable parameters"),
    ({"model": nn.Embedding(3, 2)}, "does not take inputs"),
    ({"data": None}, "data=None"),
    ({"data": "digit"}, "did you mean digits"),
    ({"data": X}, "pass (x, y)"),
    ({"data": (X[:0], Y[:0])}, "no rows"),
    ({"data": (np.full_like(X, np.nan), Y)}, "NaN"),
    ({"data": (X, Y - 5)}, "must lie in"),
    ({"data": (X, Y.astype(float))}, "y.astype(int)"),
    ({"data": ((X * 9).astype(int), Y)}, "x.astype('float32')"),
    ({"data": []}, "no sites"),
    ({"loss": 3}, "loss=3 is an int"),
    ({"loss": "cross_entropi"}, "did you mean 'cross_entropy'"),
    ({"loss": lambda output, y: output.sum()}, "gives one number for a batch"),
    ({"loss": lambda output: output}, "does not take outputs"),
    ({"loss": nn.MSELoss(reduction="sum")}, "leave reduction out"),
    ({"loss": nn.L1Loss()}, "must have one shape"),
    ({"metrics": {"hit": 3}}, "metrics['hit'] is an int"),
    ({"metrics": [hit]}, "pass a mapping"),
    ({"metrics": {"accuracy": hit}}, "is measured anyway"),
    ({"metrics": {"a b": hit}}, "is no name"),
    ({"metrics": {"hit": lambda output, y: 0.5}}, "one value per sample"),
    ({"metrics": {"hit": lambda output: output}}, "does not take outputs"),
    ({"modle": Net}, "did you mean 'model'"),
    ({"plan": 5}, "a plan is"),
    ({"plan": None}, "a plan is"),
    ({"plan": {**PLAN, "data": 3}}, "data = 3 is no table"),
    ({"plan": {**PLAN, "evaluation": 3}, "metrics": {"hit": hit}}, "= 3 is no table"),
]


@pytest.mark.parametrize(("wrong", "said"), WRONG, ids=[said for _, said in WRONG])
def test_what_is_wrong_is_said_in_words(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    given = {"plan": PLAN, "model": Net, "data": (X, Y), **wrong}
    plan = given.pop("plan")
    with pytest.raises((PlanError, DataError)) as caught:
        cupola.run(plan, tmp_path / "run", **given)
    assert said in str(caught.value)
