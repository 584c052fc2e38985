"""Attacks on the self-test of company itself."""

from __future__ import annotations

import torch
from torch import Tensor

from cupola.nn import build, find_loss
from cupola.privacy.persample import PerSample
from cupola.privacy.persample.batch_independence import depends_on_company


def test_numbers_in_memory_that_is_used_again_are_compared():
    """`Room` lends the same memory to every micro-batch: what was among others must be kept."""
    held = torch.empty(8, 3)

    def numbers(x: Tensor, y: Tensor) -> list[Tensor]:
        del y
        torch.add(x, x.sum(0), out=held)  # a sample's numbers depend on all others
        return [held]

    x = torch.rand(8, 3, generator=torch.Generator().manual_seed(0))
    assert depends_on_company(numbers, x, torch.zeros(8), 1) is not None


def test_a_few_expected_samples_of_a_large_model_have_a_form():
    module = build("densenet20x16", (3, 16, 16), 10, 0)
    engine = PerSample(module, find_loss("cross_entropy"))
    engine.clipped_sum(
        torch.rand(2, 3, 16, 16), torch.zeros(2, dtype=torch.long), 1.0, expected=5.0
    )
