"""Models, losses and metrics that somebody passes become what training needs."""
# ruff: noqa: ARG005

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from threading import Lock
from types import ModuleType

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cupola.base.held_objects import find_object
from cupola.base.source_code import source_mark
from cupola.errors import PlanError
from cupola.nn.losses import find_loss
from cupola.nn.user_objects import PerSampleLoss, held_loss, held_model, plain_loss

LOGITS, CLASSES = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2])
NET = """
from torch import nn
class Net(nn.Module):
    {comment}
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)
    def forward(self, x):
        return self.layer(x){after}
"""


def module_of(path: Path, **parts: str) -> ModuleType:
    """A module of its own name, known to Python, as one that a user imports."""
    path.write_text(NET.format(**{"comment": "", "after": "", **parts}))
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_a_change_of_code_changes_the_hash_and_a_comment_does_not(tmp_path: Path) -> None:
    plain = module_of(tmp_path / "a.py").Net
    told = module_of(tmp_path / "b.py", comment='"""A net."""  # of mine').Net
    other = module_of(tmp_path / "c.py", after=".relu()").Net
    assert source_mark(plain) == source_mark(told) != source_mark(other)
    assert held_model(plain).name == held_model(told).name != held_model(other).name
    module = plain()
    same, moved = held_model(module).name, plain()
    moved.load_state_dict(module.state_dict())
    assert held_model(moved).name == same
    with torch.no_grad():
        moved.layer.bias += 1
    assert held_model(moved).name != same


def test_a_module_is_copied() -> None:
    module = nn.Linear(4, 2)
    held = held_model(module)
    made = held.value()
    with torch.no_grad():
        made.weight.zero_()
    assert bool(module.weight.any())
    assert bool(held.value().weight.any())


def test_losses_of_torch_give_one_value_for_each_sample() -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
    for loss in (weighted, F.nll_loss, nn.NLLLoss, nn.MultiMarginLoss()):
        values = PerSampleLoss(loss)(LOGITS, CLASSES)
        for i in range(6):
            alone = loss() if loss is nn.NLLLoss else loss
            if loss is not weighted:
                assert values[i] == pytest.approx(
                    float(alone(LOGITS[i : i + 1], CLASSES[i : i + 1]))
                )
        assert values.shape == (6,)
    assert torch.allclose(
        PerSampleLoss(weighted)(LOGITS, CLASSES),
        (CLASSES + 1) * F.cross_entropy(LOGITS, CLASSES, reduction="none"),
    )


def test_labels_of_two_classes_fit_a_loss_of_numbers() -> None:
    output, y = torch.randn(5, 1), torch.tensor([0, 1, 1, 0, 1])
    found = PerSampleLoss(nn.BCEWithLogitsLoss())(output, y)
    assert torch.allclose(found, find_loss("log")(output, y))
    with pytest.raises(PlanError, match="must have one shape"):
        PerSampleLoss(nn.L1Loss())(torch.randn(5, 2), y.float())


def test_padding_counts_in_no_mean() -> None:
    scores, y = torch.randn(2, 4, 3), torch.tensor([[0, 1, -1], [2, -1, -1]])
    found = PerSampleLoss(nn.CrossEntropyLoss(ignore_index=-1, weight=torch.ones(4)))(scores, y)
    alone = F.cross_entropy(scores[1:, :, :1], y[1:, :1])
    assert found[1] == pytest.approx(float(alone))


def test_usual_losses_are_the_plans_own() -> None:
    assert plain_loss(nn.CrossEntropyLoss()) == {"name": "cross_entropy"}
    assert plain_loss(F.cross_entropy) == {"name": "cross_entropy"}
    assert plain_loss(nn.CrossEntropyLoss(label_smoothing=0.1)) == {
        "name": "cross_entropy",
        "label_smoothing": 0.1,
    }
    assert plain_loss(nn.MSELoss()) == {"name": "squared_error"}
    for other in (
        nn.MSELoss(reduction="sum"),
        nn.CrossEntropyLoss(weight=torch.ones(2)),
        F.l1_loss,
    ):
        assert plain_loss(other) is None


def test_other_options_are_another_loss() -> None:
    names = {
        held_loss(loss).name
        for loss in (nn.HuberLoss(), nn.HuberLoss(delta=2.0), nn.L1Loss(), F.huber_loss)
    }
    assert len(names) == 4


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (3, "is an int"),
        ([1], "is a list"),
        (dict, "is a type"),
        (nn.MSELoss(reduction="sum"), "leave reduction out"),
        (nn.Linear(2, 2), "parameters of its own"),
        (nn.AdaptiveLogSoftmaxWithLoss, "without arguments"),
    ],
)
def test_what_is_no_loss_is_refused(loss: object, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        PerSampleLoss(loss)


def test_one_number_for_a_batch_is_refused() -> None:
    with pytest.raises(PlanError, match="gives one number for a batch of 6"):
        PerSampleLoss(lambda output, y: F.cross_entropy(output, y))(LOGITS, CLASSES)
    with pytest.raises(PlanError, match="not a tensor"):
        PerSampleLoss(lambda output, y: 0.5)(LOGITS, CLASSES)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (3, "is an int"),
        (None, "is a NoneType"),
        (nn.LazyLinear(2), "without a shape"),
        (max, "wrap it in a function"),
    ],
)
def test_what_makes_no_model_is_refused(model: object, said: str) -> None:
    with pytest.raises(PlanError, match=said):
        held_model(model)


def _loss_of(power: float, held: object = None):
    def loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y, reduction="none") ** power + 0 * (held is None)

    return loss


class _Power:
    def __init__(self, power: object) -> None:
        self.power = power

    def __call__(self, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, y, reduction="none") ** self.power


HOLDERS = {
    "closure": _loss_of,
    "attribute": _Power,
    "default": lambda p: lambda o, y, p=p: o[:, 0] * p,
    "tensor": lambda p: _Power(torch.tensor(p)),
    "list in a dictionary": lambda p: _Power({"a": [p]}),
    "closure in an attribute": lambda p: _Power(_loss_of(p)),
    "method": lambda p: _Power(p).__call__,
    "partial": lambda p: partial(_Power.__call__, _Power(p)),
}


@pytest.mark.parametrize("make", HOLDERS.values(), ids=HOLDERS)
def test_what_an_object_holds_is_in_its_name(make) -> None:
    """Two losses of one source are two losses: a plan must not lead to the other one."""
    one, same, other = (held_loss(make(p)) for p in (1.0, 1.0, 2.0))
    assert one.name == same.name != other.name
    assert find_object(other.name, "loss", PlanError) is other.value


def test_objects_that_nobody_can_compare_do_not_stand_for_each_other() -> None:
    one, other = _loss_of(1.0, Lock()), _loss_of(2.0, Lock())
    assert source_mark(one) is None
    first, second = held_loss(one), held_loss(other)
    assert first.name != second.name
    assert held_loss(one).name == first.name
    assert find_object(second.name, "loss", PlanError) is second.value
