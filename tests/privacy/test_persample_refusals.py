"""What has no per-sample gradients is refused by name; rules of one's own."""

from __future__ import annotations

import math

import persample_oracles as oracles
import pytest
import torch
from persample_examples import MARKS, draw, loss, ready
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.privacy.persample import PerSample, Rule, rule, unsupported

pytestmark = MARKS


class Mixing(nn.Module):
    """Centres the batch, seen or unseen by gradients."""

    def __init__(self, *, detached: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.detached = detached

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        mean = h.mean(0)
        return h - (mean.detach() if self.detached else mean)


@pytest.mark.parametrize("detached", [False, True])
def test_hidden_mixing_of_samples_is_refused(detached):
    module = ready(nn.Sequential(nn.Dropout(0.5), Mixing(detached=detached)))
    with pytest.raises(PlanError, match="depends on the other samples"):
        PerSample(module, loss).clipped_sum(draw(5, 6), torch.ones(5).double(), 1.0)


def test_batch_norm_is_refused_by_name():
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(PlanError, match=r"1 \(BatchNorm2d\).*group normalisation"):
        PerSample(module, loss)
    module.eval()
    persample = PerSample(module, loss)
    module.train()
    with pytest.raises(PlanError, match="BatchNorm2d"):
        persample.clipped_sum(torch.zeros(2, 2, 4, 4), torch.zeros(2), 1.0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.SyncBatchNorm(3),
        nn.BatchNorm1d(3, track_running_stats=False).eval(),
        nn.InstanceNorm2d(3, track_running_stats=True),
        nn.Embedding(5, 2, max_norm=1.0),
        nn.Embedding(5, 2, scale_grad_by_freq=True),
    ],
    ids=str,
)
def test_layers_that_see_more_than_a_sample_are_refused(layer):
    assert type(layer).__name__ in (unsupported(nn.Sequential(layer)) or "")


@pytest.mark.parametrize(
    "layer", [nn.Linear(3, 2), nn.InstanceNorm2d(3, affine=True), nn.LSTM(2, 2)]
)
def test_other_layers_are_not_refused(layer):
    assert unsupported(layer) is None


def test_bad_arguments_are_named():
    module, x, y = nn.Linear(6, 1), torch.zeros(4, 6), torch.zeros(4)
    persample = PerSample(module, loss)
    for clip in (0.0, -1.0, math.nan):
        with pytest.raises(PlanError, match="clip"):
            persample.clipped_sum(x, y, clip)
    with pytest.raises(PlanError, match="multiplicity"):
        persample.clipped_sum(x, y, 1.0, multiplicity=0)
    with pytest.raises(PlanError, match="3 copies"):
        persample.clipped_sum(x, y, 1.0, multiplicity=3)
    with pytest.raises(PlanError, match="4 inputs and 3 targets"):
        persample.clipped_sum(x, y[:3], 1.0)
    with pytest.raises(PlanError, match="microbatch"):
        PerSample(module, loss, microbatch=0)
    with pytest.raises(PlanError, match="one value per sample"):
        PerSample(module, lambda output, _: output.mean()).clipped_sum(x, y, 1.0)
    for p in module.parameters():
        p.requires_grad_(False)
    with pytest.raises(PlanError, match="no trainable parameters"):
        persample.clipped_sum(x, y, 1.0)


class Scale(nn.Module):
    """A layer of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def test_a_layer_of_ones_own_joins_by_a_rule(monkeypatch):
    from cupola.privacy.persample import rules

    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))
    module, x, y = ready(nn.Sequential(Scale(), nn.Linear(6, 2))), draw(5, 6), draw(5, seed=3)
    without = PerSample(module, loss)
    expected = without.clipped_sum(x, y, 1.0)
    assert "Scale" in (without.fallback or "")

    @rule(Scale)
    class ScaleRule(Rule):
        def gradients(self, layer, kept, g):  # noqa: ARG002
            (x,) = kept
            return {"factor": (x * g).sum(1)}

    joined = PerSample(module, loss)
    found = joined.clipped_sum(x, y, 1.0)
    assert joined.fallback is None
    torch.testing.assert_close(found.norms, expected.norms, rtol=1e-6, atol=0)
    for a, b in zip(found.sums, expected.sums):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)
    with pytest.raises(ValueError, match="rule already"):
        rule(Scale)(ScaleRule)


def test_a_wrong_rule_is_not_believed(monkeypatch):
    from cupola.privacy.persample import rules

    monkeypatch.setattr(rules, "_RULES", dict(rules._RULES))

    @rule(Scale)
    class Wrong(Rule):
        def gradients(self, layer, kept, g):  # noqa: ARG002
            return {"factor": g.sum(1)}

    module, x, y = ready(Scale()), draw(5, 6), torch.ones(5).double()
    persample = PerSample(module, loss)
    found = persample.clipped_sum(x, y, 1.0)
    assert persample.fallback is not None
    oracles.assert_equal(found, oracles.alone(module, loss, x, y), 1.0)


@pytest.mark.parametrize("ignored", [-100, 1, 0])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_a_mean_over_labels_that_count_is_refused(ignored, classes):
    """Whatever labels the trial happens to draw."""

    def loss(output, y):
        values = F.cross_entropy(output, y, reduction="none", ignore_index=ignored)
        return values * len(y) / (y != ignored).sum().clamp_min(1)

    engine = PerSample(nn.Linear(classes, classes), loss)
    with pytest.raises(PlanError, match="depends on the other samples"):
        engine.clipped_sum(torch.randn(8, classes), torch.zeros(8, dtype=torch.int64), 1.0)
