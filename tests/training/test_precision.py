"""Precision of products: what changes, what does not, and where it is refused."""

import copy
from dataclasses import replace
from functools import partial

import pytest
import small
import torch
from torch import nn

import cupola
from cupola.errors import PlanError
from cupola.nn.models.building import build
from cupola.training import Local, Privacy, Problem, Workspace
from cupola.training.precision import autocast, set_products

PLAN = {
    "name": "t", "rounds": 2, "model": "cnn",
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3}},
}  # fmt: skip


def test_a_forward_pass_in_bfloat16():
    """Products have 8 bits, outputs and gradients are float32; a copy computes with its own."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    x, inner = torch.randn(5, 64), []
    expected = module(x)
    names = list(module.state_dict())
    autocast(module)
    module[0].register_forward_hook(lambda *call: inner.append(call[2].dtype))
    found = module(x)
    assert inner == [torch.bfloat16]
    assert found.dtype == torch.float32
    assert 1e-5 < float((found - expected).detach().abs().max()) < 0.05
    assert list(module.state_dict()) == names
    assert isinstance(module, nn.Sequential)
    grads = torch.autograd.grad(found.sum(), list(module.parameters()))
    assert {g.dtype for g in grads} == {torch.float32}
    other = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert float(other(x).detach().abs().max()) == 0


@pytest.mark.parametrize("make", [None, small.perceptron(lambda: nn.LayerNorm(8))])
def test_a_training_in_bfloat16_is_near_that_in_float32(make):
    data = small.digits((40, 60))
    models = []
    for precision in ("full", "tf32", "bfloat16"):
        what = small.problem(data, make, dtype=torch.float32, precision=precision)
        models.append(small.run(small.training(data, what=what), data, "auto").arrays)
    assert small.largest_difference(models[0], models[1]) == 0  # no GPU, no TF32
    assert 0 < small.largest_difference(models[0], models[2]) < 0.02


def test_layers_of_the_library_take_it():
    for model in ("cnn", "knresnet13", "resnet8"):
        make = partial(build, model, (3, 16, 16), 10, 0)
        what = Problem(make, small.CROSS_ENTROPY, "classification", 10, (3, 16, 16))
        space = Workspace(replace(what, precision="bfloat16"))
        x, y = torch.rand(4, 3, 16, 16), torch.arange(4)
        assert all(bool(g.isfinite().all()) for g in space.gradient(x, y))


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_clips_that_are_proven_take_full_precision(precision):
    data = small.digits((40, 60))
    what = small.problem(data, dtype=torch.float32, precision=precision)
    private = Privacy(mechanism="dp-sgd", clip=1.0, noise_multiplier=1.0)
    with pytest.raises(PlanError, match=rf"precision = '{precision}'.*use precision = 'full'"):
        small.training(data, what=what, privacy=private)
    central = Privacy(mechanism="central", clip=1.0, noise_multiplier=1.0)
    small.training(data, what=what, privacy=central, local=Local(lr=0.1, weighting="uniform"))


def test_plans_that_say_what_cannot_be(tmp_path):
    with pytest.raises(PlanError, match="precision = 'bfloat16' is for dtype = 'float32'"):
        cupola.load({**PLAN, "dtype": "float64", "precision": "bfloat16"})
    with pytest.raises(PlanError, match="device_noise draws noise on a CUDA device"):
        cupola.load({**PLAN, "device": "cpu", "device_noise": True})
    with pytest.raises(PlanError, match="device_noise is for noise that is drawn at every step"):
        cupola.run({**PLAN, "device_noise": True}, folder=tmp_path)
    plan = {**PLAN, "model": "linear", "precision": "bfloat16", "engine": {"mode": "together"}}
    with pytest.raises(PlanError, match="cannot be computed together"):
        cupola.run(plan, folder=tmp_path / "together")


def test_precision_is_agreed_upon_and_the_place_of_noise_is_not():
    from cupola.training.plan import Plan

    assert "precision" not in Plan.own_affair
    assert "device_noise" in Plan.own_affair


def test_a_switch_of_the_process_is_set_for_gpus_only(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    set_products(torch.device("cpu"), "full")
    assert torch.backends.cudnn.allow_tf32
    for precision, allowed in (("tf32", True), ("full", False)):
        set_products(torch.device("cuda"), precision)
        assert torch.backends.cudnn.allow_tf32 == allowed
        assert (torch.get_float32_matmul_precision() == "highest") != allowed
