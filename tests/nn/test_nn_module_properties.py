"""Inspection: what mixes a batch, what draws, what can be stacked; nothing is disturbed."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.nn import build, loss_is_batch_dependent, properties

FLAT, IMAGES = torch.rand(3, 6), torch.rand(3, 2, 8, 8)


class Own(nn.Module):
    """A user's model: a linear layer, then `function`, then another one."""

    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.act(self.first(x))))


class Centre(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("linear", (6,), {}),
        ("mlp", (6,), {"hidden": [4]}),
        ("cnn", (1, 8, 8), {"hidden": 8}),
        ("resnet8", (1, 8, 8), {"norm": "layer"}),
        ("fcn", (1, 8, 8), {"width": 4}),
    ],
)
def test_clean_models_are_clean_and_stackable(name, shape, options):
    found = properties(build(name, shape, 3, 0, **options), torch.rand(1, *shape))
    assert found.utility_preserving
    assert found.mutates_buffers == ()
    assert found.stackable, found.obstacle


def test_lstm_is_clean_but_not_stackable():
    found = properties(build("char_lstm", (7,), 9, 0, hidden=8), torch.randint(0, 9, (2, 7)))
    assert found.utility_preserving
    assert not found.stackable
    assert "vmap" in found.obstacle


def test_batch_norm_is_named():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    found = properties(module, IMAGES)
    assert found.batch_dependent == ("1 (BatchNorm2d)",)
    assert found.random == ()
    assert found.mutates_buffers == tuple(
        f"1.{b}" for b in ("running_mean", "running_var", "num_batches_tracked")
    )
    assert not found.stackable


def test_batch_norm_over_single_values_and_without_statistics():
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, track_running_stats=False))
    found = properties(module, FLAT)
    assert found.batch_dependent == ("1 (BatchNorm1d)",)
    assert found.mutates_buffers == ()
    assert found.stackable


def test_unused_batch_norm_is_still_named():
    module = Own(lambda x: x)
    module.spare = nn.SyncBatchNorm(3)
    assert properties(module, FLAT).batch_dependent == ("spare (SyncBatchNorm)",)


def test_dropout_is_named_only_where_it_draws():
    module = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.0), nn.Dropout(0.3), nn.RReLU())
    found = properties(module, FLAT)
    assert found.random == ("2 (Dropout)", "3 (RReLU)")
    assert found.batch_dependent == ()
    assert "random" in found.obstacle


@pytest.mark.parametrize(
    "draw",
    [
        F.dropout,
        lambda x: x + torch.randn_like(x),
        lambda x: x if random.random() < 0.999 else 2 * x,  # a rare event
        lambda x: x * np.random.rand(),  # noqa: NPY002
    ],
)
def test_draws_hidden_in_user_code_are_found(draw):
    found = properties(Own(draw), FLAT)
    assert found.random == ("model (Own)",)
    assert found.batch_dependent == ()


@pytest.mark.parametrize(
    "mix",
    [
        lambda x: x - x.mean(0),
        lambda x: x.cumsum(0),
        lambda x: x / len(x),
        lambda x: x / x.norm(),
        lambda x: torch.where(x > x.amax(0) - 1e-12, x, 0.5 * x),
        lambda x: F.dropout(x) - x.mean(0),
    ],
)
def test_mixing_hidden_in_user_code_is_found(mix):
    assert properties(Own(mix), FLAT).batch_dependent == ("model (Own)",)


def test_mixing_is_traced_to_the_innermost_module():
    inner = nn.Sequential(nn.Linear(6, 4), Centre(), nn.Tanh())
    found = properties(nn.Sequential(inner, nn.Linear(4, 2)), FLAT)
    assert found.batch_dependent == ("0.1 (Centre)",)
    both = nn.Sequential(inner, nn.Dropout(0.5), nn.Linear(4, 4), nn.BatchNorm1d(4))
    found = properties(both, FLAT)
    assert found.batch_dependent == ("0.1 (Centre)", "3 (BatchNorm1d)")
    assert found.random == ("1 (Dropout)",)


def test_frozen_batch_norm_is_clean():
    class Frozen(nn.BatchNorm1d):
        def train(self, mode: bool = True):  # noqa: ARG002
            return super().train(False)

    found = properties(nn.Sequential(nn.Linear(6, 4), Frozen(4)), FLAT)
    assert found.utility_preserving
    assert found.stackable, found.obstacle


def test_layers_in_place_and_float32_only_are_no_trouble():
    module = nn.Sequential(nn.ELU(inplace=True), nn.Linear(6, 4), nn.ELU(inplace=True))
    assert properties(module, FLAT).utility_preserving
    insists = properties(Own(lambda x: x + torch.ones(5, 5).matmul(x.float().T).T), FLAT)
    assert insists.utility_preserving


def test_data_dependent_control_flow_cannot_be_stacked():
    found = properties(Own(lambda x: x if float(x.detach().sum()) > -1e9 else -x), FLAT)
    assert found.utility_preserving
    assert not found.stackable
    assert "vmap" in found.obstacle


@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_disturbed(training):
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)).train(training)
    before = copy.deepcopy(module.state_dict())
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # noqa: NPY002
    properties(module, FLAT)
    assert [m.training for m in module.modules()] == [training] * 4
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    assert not any(m._forward_pre_hooks for m in module.modules())
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.array_equal(np.random.get_state()[1], states[2])  # noqa: NPY002


def test_models_that_cannot_be_tried_are_refused():
    with pytest.raises(PlanError, match=r"shape \(7,\)"):
        properties(nn.Linear(6, 2), torch.rand(2, 7))
    with pytest.raises(PlanError, match="one row for each input"):
        properties(nn.Flatten(0), torch.rand(2, 7))
    with pytest.raises(PlanError, match="at least one"):
        properties(nn.Linear(6, 2), torch.rand(0, 6))


LAYERS = {
    "linear": lambda: nn.Linear(6, 6),
    "norm": lambda: nn.LayerNorm(6),
    "tanh": lambda: nn.Tanh(),
    "batch": lambda: nn.BatchNorm1d(6),
    "centre": lambda: Centre(),
    "dropout": lambda: nn.Dropout(0.5),
}


@given(st.lists(st.sampled_from(sorted(LAYERS)), min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_any_stack_of_layers_is_told_apart(kinds):
    # Centring twice in a row is centring: the second shows nothing new but is named all the same.
    module = nn.Sequential(*(LAYERS[kind]() for kind in kinds))
    found = properties(module, FLAT)

    def named(*wanted: str) -> tuple[str, ...]:
        return tuple(
            f"{i} ({type(module[i]).__name__})" for i, kind in enumerate(kinds) if kind in wanted
        )

    assert found.random == named("dropout")
    assert found.batch_dependent == named("batch", "centre")


LOGITS, CLASSES = torch.zeros(4, 5), torch.zeros(4, dtype=torch.int64)
WEIGHTS = torch.tensor([1.0, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("loss", "dependent"),
    [
        (nn.CrossEntropyLoss(), False),
        (nn.CrossEntropyLoss(reduction="none"), False),
        (nn.CrossEntropyLoss(reduction="sum"), True),
        (nn.CrossEntropyLoss(weight=WEIGHTS), True),  # divides by the batch's weights
        (nn.CrossEntropyLoss(weight=WEIGHTS, reduction="none"), False),
        (lambda o, y: F.cross_entropy(o - o.mean(0), y, reduction="none"), True),
        (lambda o, y: F.cross_entropy(o, y) ** 2, True),
        (lambda o, y: F.cross_entropy(o, y, reduction="none").sort().values, True),
    ],
)
def test_batch_dependent_losses_are_found(loss, dependent):
    # The example holds one class only, as at a site with one class.
    assert loss_is_batch_dependent(loss, LOGITS, CLASSES) is dependent
    assert loss_is_batch_dependent(loss, LOGITS[:1], CLASSES[:1]) is dependent


def test_losses_for_other_targets_and_refusals():
    assert not loss_is_batch_dependent(nn.MSELoss(), torch.zeros(3, 2), torch.rand(3, 2))
    assert not loss_is_batch_dependent(nn.BCEWithLogitsLoss(), torch.zeros(3), torch.ones(3))
    with pytest.raises(PlanError, match="targets"):
        loss_is_batch_dependent(nn.CrossEntropyLoss(), LOGITS, torch.zeros(4, 9).long())
    with pytest.raises(PlanError, match="0 outputs"):
        loss_is_batch_dependent(nn.CrossEntropyLoss(), LOGITS[:0], CLASSES[:0])
