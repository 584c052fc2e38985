"""The closed form over sites and samples equals `PerSample` site by site."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.nn import find_loss
from cupola.privacy.persample import PerSample
from cupola.privacy.persample.linear import clipped_sums

D, K = 5, 3


def example(sites: int, batch: int, loss: str, seed: int, dtype: torch.dtype = torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    weights, x = draw(sites, K, D + 1), draw(sites, batch, D) * 3
    labels = torch.randint(0, K, (sites, batch), generator=generator)
    targets = F.one_hot(labels, K).to(dtype) if loss == "cross_entropy" else draw(sites, batch, K)
    mask = torch.rand(sites, batch, generator=generator) < 0.7
    return weights, x, labels, targets, mask


def one_site(
    weights: Tensor, x: Tensor, y: Tensor, clip: float, loss: str
) -> tuple[Tensor, Tensor]:
    module = nn.Linear(D, K, dtype=weights.dtype)
    with torch.no_grad():
        module.weight.copy_(weights[:, :-1])
        module.bias.copy_(weights[:, -1])
    found = PerSample(module, find_loss(loss)).clipped_sum(x, y, clip)
    return torch.cat([found.sums[0], found.sums[1][:, None]], 1), found.norms


@given(
    sites=st.integers(1, 4),
    batch=st.integers(1, 6),
    loss=st.sampled_from(["cross_entropy", "squared_error"]),
    clip=st.one_of(st.floats(1e-2, 30), st.just(math.inf)),
    seed=st.integers(0, 99),
)
@settings(max_examples=25, deadline=None)
def test_sums_and_norms_equal_those_of_each_site(sites, batch, loss, clip, seed):
    weights, x, labels, targets, mask = example(sites, batch, loss, seed)
    x[~mask] = math.nan  # whatever lies under the mask
    sums, norms = clipped_sums(weights, x, targets, mask, clip, loss)
    assert sums.shape == (sites, K, D + 1)
    assert norms.shape == (sites, batch)
    y = labels if loss == "cross_entropy" else targets
    for s in range(sites):
        chosen = mask[s]
        total, sizes = one_site(weights[s], x[s][chosen], y[s][chosen], clip, loss)
        torch.testing.assert_close(sums[s], total, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(norms[s][chosen], sizes, rtol=1e-10, atol=1e-12)
        assert not norms[s][~chosen].any()


def test_float32_agrees_with_float64():
    weights, x, _, targets, mask = example(3, 20, "cross_entropy", 0)
    exact, exact_norms = clipped_sums(weights, x, targets, mask, 1.0)
    parts = (t.float() for t in (weights, x, targets))
    sums, norms = clipped_sums(*parts, mask, 1.0)
    assert sums.dtype == torch.float32
    torch.testing.assert_close(norms.double(), exact_norms, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_a_sample_that_is_not_finite_adds_nothing(bad):
    weights, x, _, targets, mask = example(2, 4, "squared_error", 1)
    mask[:] = True
    without = mask.clone()
    without[0, 1] = False
    expected, _ = clipped_sums(weights, x, targets, without, 1.0, "squared_error")
    x[0, 1, 2] = bad
    sums, norms = clipped_sums(weights, x, targets, mask, 1.0, "squared_error")
    assert not norms[0, 1].isfinite()
    torch.testing.assert_close(sums, expected)


def test_inputs_are_left_as_they_were_and_a_perfect_fit_is_no_problem():
    weights, x, _, _, mask = example(2, 4, "squared_error", 1)
    fit = torch.baddbmm(weights[:, None, :, -1], x, weights[..., :-1].mT)
    before = [t.clone() for t in (weights, x, fit, mask)]
    sums, norms = clipped_sums(weights, x, fit, mask, 1.0, "squared_error")
    assert all(torch.equal(a, b) for a, b in zip((weights, x, fit, mask), before))
    assert not norms.any()
    assert not sums.any()


@pytest.mark.parametrize("clip", [0.0, -1.0, math.nan])
def test_a_clip_that_is_not_positive_is_refused(clip):
    weights, x, _, targets, mask = example(1, 2, "cross_entropy", 0)
    with pytest.raises(PlanError, match="clip"):
        clipped_sums(weights, x, targets, mask, clip)
