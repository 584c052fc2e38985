"""Real sites and a model of own code that freezes a part itself: all must have made the same."""

import sys
import types

import consortium as made
import pytest
import torch
from torch import nn

from cupola.errors import FederationError
from cupola.federation import drive
from cupola.site import join_site, open_site


class Adapter(nn.Module):
    """A frozen base of one value, and a head that is trained."""

    scale = 1.0

    def __init__(self, input_shape, classes):
        super().__init__()
        self.base = nn.Linear(*input_shape, 3, bias=False).requires_grad_(False)
        nn.init.constant_(self.base.weight, Adapter.scale)
        self.head = nn.Linear(3, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.base(x)))


@pytest.fixture
def trial(tmp_path, monkeypatch):
    code = types.ModuleType("own_base")
    code.Adapter = Adapter
    monkeypatch.setattr(Adapter, "__module__", "own_base")
    monkeypatch.setitem(sys.modules, "own_base", code)
    plan = {**made.PLAN, "sum": "plain", "model": "own_base:Adapter"}
    found = made.consortium(
        tmp_path / "all",
        plan,
        join=False,
        modules=["own_base"],
        unmasked_tasks=["train", "evaluate"],
    )
    for i in range(3):
        join_site(found.site(i), found.base / "plan.toml", found.base / "roster.json")
    yield found
    found.close()


def ask(trial, program, start):
    trial.opened = [open_site(trial.site(i), trial.study) for i in range(3)]
    return drive(program, made.Wire(trial.opened, quorum=1.0), start)


def test_sites_with_the_same_base_train(trial):
    program = trial.training()
    end = ask(trial, program, program.start())
    assert end.values["round"] == 2
    assert (program.model(end)["base.weight"] == 1.0).all()


def test_sites_with_another_base_refuse_before_they_train(trial, monkeypatch):
    program = trial.training()
    start = program.start()
    monkeypatch.setattr(Adapter, "scale", 1.5)
    monkeypatch.delattr(Adapter, "forward")  # nobody computes anything
    with pytest.raises(FederationError, match=r"freezes itself \('base\.weight'\).*same weights"):
        ask(trial, program, start)
