"""Attacks on the self-test of company: bits that depend on a place though the test passes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cupola.nn import build, find_loss
from cupola.privacy.persample import ROUNDING, PerSample

EXPECTED = 100


@pytest.fixture
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def _odd(samples: int, width: int) -> tuple[float, list[list[int]], float] | None:
    """A number whose SiLU is computed otherwise in some places of an array, these places, and how
    much larger it is there; None if there are none."""
    for value in torch.linspace(-3, 3, 2001).tolist():
        made = torch.nn.functional.silu(torch.full((samples, width), value))
        places = (made != made[0, 0]).nonzero().tolist()
        if places:
            return value, places, float(made[tuple(places[0])] - made[0, 0])
    return None


@pytest.mark.usefixtures("_two_threads")
def test_no_switch_by_the_place_of_a_sample():
    """Two threads share an array; the rest of each part comes from other instructions. Weights
    take the difference of two equal units, one of which is there, and make a class of it."""
    width = 257
    module = build("mlp", (2,), 3, 0, hidden=[width], activation="silu")
    engine = PerSample(module, find_loss("cross_entropy"))
    engine.clipped_sum(torch.rand(1, 2), torch.zeros(1, dtype=torch.long), 1.0, expected=EXPECTED)
    assert engine.form is not None
    samples = engine.form.samples
    if samples == 1:
        return  # one by one: nothing to switch
    odd = _odd(samples, width)
    if odd is None:
        return  # all places are alike: nothing to switch by
    value, places, gap = odd
    row, column = places[0]
    inner, outer = module[1], module[3]
    with torch.no_grad():
        for p in module.parameters():
            p.zero_()
        inner.weight[0, 0] = inner.weight[column, 0] = value
        large = math.copysign(2.0 ** round(math.log2(600 / abs(gap))), gap)  # exact products
        outer.weight[:2, column] = torch.tensor([large, -large])
        outer.weight[:2, 0] = -outer.weight[:2, column]
        outer.bias[:] = torch.tensor([-300.0, 300.0, -2000.0])
        inner.weight[0, 1] = (
            1e6 if gap > 0 else -1e6
        )  # the first sample is always as in the odd place
    x, y = torch.zeros(samples, 2), torch.full((samples,), 2)
    x[row, 0] = 1.0  # one gradient in this place, its opposite elsewhere
    x[0] = torch.tensor([1.0, 1e-6])
    sums: list[Tensor] = []
    for a, b in ((x, y), (x[1:], y[1:])):
        found = engine.clipped_sum(a, b, 1.0, expected=EXPECTED).sums
        sums.append(torch.cat([s.flatten() for s in found]))
    assert float((sums[0] - sums[1]).norm()) <= 1 + ROUNDING
