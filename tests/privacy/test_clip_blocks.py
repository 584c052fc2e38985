"""Blocks of parameters that are clipped apart: equal to every sample by itself, and bounded."""

from __future__ import annotations

import math

import persample_oracles as oracles
import pytest
import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn import find_loss
from cupola.privacy.persample import ROUNDING, PerSample
from cupola.training.choices import Privacy
from cupola.training.mechanisms.dp_sgd import blocks_of

LOSS = find_loss("cross_entropy")


class Own(nn.Module):
    """A parameter that no rule knows: the module runs under `vmap`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.scale, self.last = (
            nn.Linear(6, 5),
            nn.Parameter(torch.ones(5)),
            nn.Linear(5, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x)) * self.scale)


def privacy(**shares: float) -> Privacy:
    return Privacy(mechanism="dp-sgd", noise_multiplier=1.0, clip=0.8, clip_shares=shares)


@pytest.mark.parametrize(
    "module", [Own(), nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))]
)
def test_each_block_is_clipped_by_itself(module: nn.Module) -> None:
    module = module.double()
    first = "first" if isinstance(module, Own) else "0"
    blocks = blocks_of(module, privacy(**{first: 0.25}))
    assert blocks is not None
    assert blocks.clips == pytest.approx((0.8 * 0.5, 0.8 * math.sqrt(0.75)))
    x, y = 3 * torch.randn(7, 6, dtype=torch.float64), torch.arange(7) % 3
    found = PerSample(module, LOSS).clipped_sum(x, y, 0.8, blocks=blocks).sums
    each = oracles.alone(module, LOSS, x, y)
    for block, clip in enumerate(blocks.clips):
        own = [i for i, of in enumerate(blocks.of) if of == block]
        norms = oracles.norms([each[i] for i in own])
        assert bool((norms > clip).any())  # something is clipped
        for i in own:
            expected = torch.einsum("n,n...->...", (clip / norms).clamp_max(1), each[i])
            assert torch.allclose(found[i], expected, rtol=2e-3, atol=1e-6)


def test_one_sample_moves_the_sum_by_the_joint_clip_at_most() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    blocks = blocks_of(module, privacy(**{"0": 0.5}))
    x, y = 1e4 * torch.randn(9, 6), torch.arange(9) % 3
    x[4] = math.inf  # adds nothing, in no block
    engine = PerSample(module, LOSS)
    whole = engine.clipped_sum(x, y, 0.8, blocks=blocks).sums
    moved = []
    for leave in range(9):
        rest = [i for i in range(9) if i != leave]
        part = engine.clipped_sum(x[rest], y[rest], 0.8, blocks=blocks).sums
        moved.append(math.sqrt(sum(float((a - b).square().sum()) for a, b in zip(whole, part))))
    assert max(moved) <= 0.8 * (1 + ROUNDING)
    assert max(moved) > 0.4
    assert moved[4] == 0


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"1": 0.5}, "'1' names no trained parameter"),
        ({"0": 0.7, "2": 0.7}, "together are above 1"),
        ({"0": 0.5, "*.weight": 0.2}, "is in two blocks"),
        ({"0.weight": 0.5}, "'0' is one layer"),
        ({"0": 1.0}, "nothing is left for '2.weight'"),
    ],
)
def test_blocks_that_cannot_be_are_refused(shares: dict[str, float], said: str) -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with pytest.raises(PlanError, match=said):
        blocks_of(module, privacy(**shares))


def test_without_blocks_nothing_is_apart() -> None:
    assert blocks_of(nn.Linear(2, 2), privacy()) is None
