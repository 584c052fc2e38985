"""What one sample can change of a released sum, for weights and data made to break the clip."""

from __future__ import annotations

import persample_attacks as attacks
import pytest
import torch
from torch import Tensor, nn

from cupola.nn import build, find_loss
from cupola.privacy.persample import ROUNDING, PerSample
from cupola.privacy.persample.rules import _RULES, Dense
from cupola.privacy.persample.tape import _CELLS

SIZES = [1, 2, 3, 5, 9, 17, 70]
MOST = 1 + ROUNDING


@pytest.mark.parametrize("path", attacks.PATHS)
@pytest.mark.parametrize("name", attacks.CASES)
def test_one_sample_changes_the_sum_by_the_clip_at_most(name, path):
    assert attacks.worst(name, 20, SIZES, **attacks.PATHS[path]) <= MOST


def test_every_rule_is_attacked():
    """A new rule, or cell, needs a case."""
    attacked = {kind for case in attacks.CASES.values() for kind in case.rules}
    own = {kind for kind in {*_RULES, *_CELLS} if kind.__module__.startswith(("torch", "cupola"))}
    assert own - attacked == {Dense}  # the linear rule by another name: cells


def test_no_switch_by_the_number_of_samples():
    """In 2 dense layers one different bit makes another gradient of every sample."""
    module, x, y = attacks.switch()
    engine = PerSample(module, attacks.linear_loss, microbatch=64)
    found = [
        engine.clipped_sum(x[:n], y[:n], 1.0).sums for n in (1, 2, 3, 4, 5, 63, 64, 65, 67, 68)
    ]
    each = [torch.cat([s.flatten() for s in sums]) for sums in found]
    for n, total in zip((2, 3, 4, 5, 63, 64, 65, 67, 68), each[1:]):
        assert float((total - n * each[0]).norm()) <= 1e-9 * n
    assert attacks.difference(engine, x[:68], y[:68], 0) <= MOST
    assert attacks.difference(engine, x[:4], y[:4], 0) <= MOST


def test_a_sample_among_others_has_its_own_bits():
    """Functions such as Mish finish an array by other instructions than its beginning."""
    module = nn.Sequential(
        nn.Linear(7, 13), nn.Mish(), nn.Linear(13, 5), nn.GELU(), nn.Linear(5, 3)
    )
    x = torch.randn(70, 7, generator=torch.Generator().manual_seed(0))
    engine = PerSample(module, lambda output, y: output.square().sum(1) + 0 * y)
    norms = engine.clipped_sum(x, torch.zeros(70), 1.0).norms
    order = torch.randperm(70, generator=torch.Generator().manual_seed(1))
    assert torch.equal(engine.clipped_sum(x[order], torch.zeros(70), 1.0).norms, norms[order])
    for n in (1, 3, 31, 69):
        assert torch.equal(engine.clipped_sum(x[:n], torch.zeros(n), 1.0).norms, norms[:n])


def test_samples_go_one_by_one_where_their_bits_depend_on_their_place():
    class Placed(nn.Module):
        """A library that rounds the first row of an array otherwise."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            nudge = torch.zeros(len(x), 1)
            nudge[0] = 2.0**-23
            return self.linear(x * (1 + nudge))

    engine = PerSample(Placed(), lambda output, y: output.square().sum(1) + 0 * y)
    engine.clipped_sum(torch.ones(9, 5), torch.zeros(9), 1.0)
    assert engine.form is not None
    assert engine.form.samples == 1
    assert "place" in (engine.form.alone or "")


def test_dp_sgd_is_refused_where_a_computation_is_not_repeatable():
    from cupola.errors import PlanError

    calls = iter(range(10**6))

    class Moody(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            moved = 2.0**-20 * (next(calls) % 2) * (x.dtype == torch.float32)
            return self.linear(x) * (1 + moved)

    engine = PerSample(Moody(), lambda output, y: output.square().sum(1) + 0 * y)
    with pytest.raises(PlanError, match="refused on this machine"):
        engine.clipped_sum(torch.ones(9, 5), torch.zeros(9), 1.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_crafted_transformer_adds_the_clip_at_most(seed):
    """Weights of many sizes and texts of repeated words: a linear layer's positions cancel."""
    module = build("transformer", (12,), 50, 0, width=16, heads=2, hidden=32, dropout=0.0)
    loss = find_loss("cross_entropy")
    chance = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 50, (9, 12), generator=chance)
    x[::2] = x[::2, :1]
    y = torch.randint(0, 50, (9, 12), generator=chance)
    engine = PerSample(module, loss)
    for _ in range(12):
        with torch.no_grad():
            for p in module.parameters():
                size = torch.empty(1).uniform_(-3, 9, generator=chance)
                p.normal_(generator=chance).mul_(10**size)
        assert attacks.difference(engine, x, y, 0) <= MOST


def test_nothing_private_decides_how_a_batch_is_computed():
    """A trial on private samples could be told to fail by one of them."""
    module = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))
    seen: list[Tensor] = []

    def loss(output: Tensor, y: Tensor) -> Tensor:
        seen.append(y.detach().clone())
        return output.square().sum(1) + 0 * y

    x, y = torch.full((5, 4), 7.0), torch.full((5,), 11.0)
    PerSample(module, loss).clipped_sum(x, y, 1.0)
    assert bool((seen[-1] == 11).all())
    assert not any(bool((part == 11).any()) for part in seen[:-1])
