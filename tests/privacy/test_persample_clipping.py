"""The clip holds whatever comes: bounds, numbers that are not finite, memory, state left behind."""

from __future__ import annotations

import math

import persample_oracles as oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from persample_examples import MARKS, Raw, SwappedLSTM, draw, loss, ready
from torch import Tensor, nn

from cupola.privacy.persample import Clipped, PerSample

pytestmark = MARKS


@given(
    n=st.integers(0, 9),
    microbatch=st.integers(1, 10),
    clip=st.floats(1e-3, 1e3),
    scale=st.floats(1e-3, 1e3),
)
@settings(max_examples=25, deadline=None)
def test_no_sample_moves_the_sum_by_more_than_clip(n, microbatch, clip, scale):
    module = ready(nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)))
    x, y = draw(n, 6), torch.full((n,), scale).double()
    persample = PerSample(module, loss, microbatch=microbatch)
    found = persample.clipped_sum(x, y, clip)
    assert found.norms.shape == found.losses.shape == (n,)
    whole = PerSample(module, loss).clipped_sum(x, y, clip)
    for a, b in zip(found.sums, whole.sums):
        torch.testing.assert_close(a, b)
    if n:
        without = persample.clipped_sum(x[1:], y[1:], clip)
        moved = [a - b for a, b in zip(found.sums, without.sums)]
        size = float(torch.cat([m.flatten() for m in moved]).norm())
        expected = min(clip, float(found.norms[0]))
        assert size == pytest.approx(expected, rel=1e-6, abs=1e-9 * n * clip)


@pytest.mark.parametrize("make", [lambda: nn.Linear(6, 2), Raw], ids=["book-keeping", "vmap"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_a_gradient_that_is_not_finite_adds_nothing(make, bad):
    module, x, y = ready(make()), draw(4, 6), torch.ones(4).double()
    expected = PerSample(module, loss).clipped_sum(x[[0, 1, 3]], y[:3], 1.0)
    x[2] = bad
    found = PerSample(module, loss).clipped_sum(x, y, 1.0)
    assert not found.norms[2].isfinite()
    torch.testing.assert_close(found.norms[[0, 1, 3]], expected.norms)
    for a, b in zip(found.sums, expected.sums):
        torch.testing.assert_close(a, b)


def test_cancelling_terms_do_not_hide_a_norm():
    """Large terms that cancel: the norm of what is left must not drown in their rounding."""
    module = nn.Linear(40, 40)
    x = torch.cat([draw(1, 1, 40) * 1e3] * 2 + [draw(1, 1, 40, seed=2) * 1e-2], 1).float()
    signs = torch.tensor([1.0, -1.0, 1.0])

    def cancelling(output: Tensor, y: Tensor) -> Tensor:
        return (output.sum(-1) * signs).sum(1) * y

    found = PerSample(module, cancelling).clipped_sum(x, torch.ones(1), 1e-3)
    exact = math.sqrt(40) * float((x[0] * signs[:, None]).double().sum(0).norm())
    terms = math.sqrt(40) * float(x[0].double().norm(dim=1).sum())
    assert float(found.norms) >= math.sqrt(exact**2 + 40)
    assert float(found.norms) <= math.sqrt(exact**2 + 40 + 2.0**-19 * terms**2)
    size = float(torch.cat([s.flatten() for s in found.sums]).norm())
    assert size <= 1e-3


class Viewing(nn.Module):
    """Wants its images in the usual order in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 64, 3, padding=1)
        self.linear = nn.Linear(64 * 24, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x).tanh()
        return self.linear(h.view(len(h), -1))


@pytest.mark.parametrize(
    "make",
    [
        Viewing,
        lambda: nn.Sequential(nn.Conv2d(3, 64, 3), nn.GroupNorm(4, 64), nn.Flatten()),
    ],
    ids=["view", "channels last"],
)
@pytest.mark.parametrize("microbatch", [1, 2, 4])
@pytest.mark.parametrize("bad", [None, math.inf])
def test_memory_of_a_micro_batch_is_used_again(make, microbatch, bad, monkeypatch):
    monkeypatch.setattr("cupola.privacy.persample.convolution.WINDOWS", 1400)  # 2 samples
    module, x = ready(make()), draw(7, 3, 6, 4)
    y = 1 + torch.arange(7, dtype=torch.float64)
    good = torch.tensor([i for i in range(7) if bad is None or i != 4])
    if bad is not None:
        x[4] = bad
    gradients = oracles.alone(module, loss, x[good], y[good])
    clip = float(oracles.norms(gradients).median())
    persample = PerSample(module, loss, microbatch=microbatch)
    first = persample.clipped_sum(x, y, clip)
    again = persample.clipped_sum(x, y, 2 * clip)
    assert persample.fallback is None
    for found, limit in ((first, clip), (again, 2 * clip)):
        assert all(s.is_contiguous() for s in found.sums)
        found = Clipped(found.sums, found.norms[good], found.losses[good])
        oracles.assert_equal(found, gradients, limit)


def test_no_samples_give_zeros_and_infinity_clips_nothing():
    module, x, y = ready(nn.Linear(6, 4)), draw(5, 6), torch.ones(5).double()
    persample = PerSample(module, loss)
    none = persample.clipped_sum(x[:0], y[:0], 1.0)
    assert none.norms.shape == none.losses.shape == (0,)
    assert [s.shape for s in none.sums] == [p.shape for p in module.parameters()]
    assert not any(bool(s.any()) for s in none.sums)
    plain = torch.autograd.grad(loss(module(x), y).sum(), list(module.parameters()))
    for a, b in zip(persample.clipped_sum(x, y, math.inf).sums, plain):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    "make", [lambda: nn.Conv2d(2, 2, 1), lambda: SwappedLSTM(), Raw], ids=["rule", "cell", "vmap"]
)
@pytest.mark.parametrize("fails", [False, True])
def test_module_and_generators_are_left_as_they_were(make, fails):
    module = ready(make())
    x = draw(3, 2, 4, 4) if isinstance(module, nn.Conv2d) else draw(3, 5, 3)
    x = draw(3, 6) if isinstance(module, Raw) else x
    before = {k: v.clone() for k, v in module.state_dict().items()}
    places = [p.data_ptr() for p in module.parameters()]
    start = torch.default_generator.get_state()

    def failing(*_: Tensor) -> Tensor:
        raise ZeroDivisionError

    persample = PerSample(module, failing if fails else loss)
    if fails:
        with pytest.raises(ZeroDivisionError):
            persample.clipped_sum(x, torch.ones(3).double(), 1.0)
    else:
        with torch.no_grad():  # callers may be in any mode
            found = persample.clipped_sum(x, torch.ones(3).double(), 1.0)
        assert not any(t.requires_grad for t in (*found.sums, found.norms, found.losses))
    assert torch.equal(start, torch.default_generator.get_state())
    for part in module.modules():
        assert not part._forward_hooks
        assert "forward" not in vars(part)
    assert all(p.grad is None for p in module.parameters())
    assert places == [p.data_ptr() for p in module.parameters()]
    assert all(torch.equal(v, before[k]) for k, v in module.state_dict().items())


def test_tiny_output_gradients_at_huge_inputs_are_clipped():
    """In float32 their squares vanish, and with them the norm that clips."""
    layer = nn.Linear(3, 2)
    x = torch.full((1, 3), 1e19)
    slope = 1e-20

    def loss(output, y):
        return slope * output.sum(1) + 0 * y

    clip = 1e-4
    clipped = PerSample(layer, loss).clipped_sum(x, torch.zeros(1), clip)
    norm = sum(float(s.double().square().sum()) for s in clipped.sums) ** 0.5
    assert float(clipped.norms) > 0.1
    assert norm <= clip * 1.001


def test_book_keeping_works_where_gradients_are_off():
    """Training calls it so; a silent fall-back would cost its speed."""
    layer = nn.Sequential(nn.Flatten(), nn.Linear(3, 2))
    engine = PerSample(layer, lambda output, y: output.square().sum(1) + 0 * y)
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        off = engine.clipped_sum(x, torch.zeros(4), 0.5)
    assert engine.fallback is None
    on = engine.clipped_sum(x, torch.zeros(4), 0.5)
    assert all(torch.equal(a, b) for a, b in zip(off.sums, on.sums))
    assert not any(s.requires_grad for s in (*off.sums, off.norms, off.losses))
