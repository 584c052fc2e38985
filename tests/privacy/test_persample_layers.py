"""Per-sample gradients layer by layer: equal to Opacus, to vmap(grad) and to samples alone."""

from __future__ import annotations

import math

import persample_oracles as oracles
import pytest
import torch
from persample_examples import LAYERS, MARKS, NOT_MAPPED, NOT_OPACUS, example, loss

from cupola.privacy.persample import PerSample, convolution

pytestmark = MARKS


@pytest.mark.parametrize("name", LAYERS)
def test_layer_equals_samples_alone_opacus_and_vmap(name):
    module, x, y = example(name)
    gradients = oracles.alone(module, loss, x, y)
    clip = float(oracles.norms(gradients).median())
    persample = PerSample(module, loss)
    found = persample.clipped_sum(x, y, clip)
    assert persample.fallback is None
    oracles.assert_equal(found, gradients, clip)
    torch.testing.assert_close(found.losses, loss(module(x), y).detach())
    if name not in NOT_MAPPED:
        oracles.assert_equal(found, oracles.mapped(module, loss, x, y), clip)
    if name not in NOT_OPACUS:
        oracles.assert_equal(found, oracles.by_opacus(module, loss, x, y), clip)


@pytest.mark.parametrize("name", LAYERS)
def test_copies_of_a_sample_are_averaged_before_clipping(name):
    module, x, y = example(name)
    copies = 2
    if not x.is_floating_point():
        x = torch.cat([x, x.flip(-1), (x + 1) % 7, x])
    else:
        x = torch.cat([x, x.roll(1, 0) * 1.3, 0.5 * x.flip(-1), x.sin()])
    y = y.repeat(4)
    rows = oracles.alone(module, loss, x, y)
    gradients = [g.unflatten(0, (-1, copies)).mean(1) for g in rows]
    clip = float(oracles.norms(gradients).median())
    found = PerSample(module, loss, microbatch=3).clipped_sum(x, y, clip, multiplicity=copies)
    oracles.assert_equal(found, gradients, clip)
    expected = loss(module(x), y).detach().view(-1, copies).mean(1)
    torch.testing.assert_close(found.losses, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_frozen_parameters_count_in_no_norm(name):
    module, x, y = example(name)
    parameters = list(module.parameters())
    for frozen in ([parameters[0]], parameters[1:]):
        for p in parameters:
            p.requires_grad_(all(p is not f for f in frozen))
        if not oracles.trained(module):
            continue
        gradients = oracles.alone(module, loss, x, y)
        clip = float(oracles.norms(gradients).median())
        persample = PerSample(module, loss)
        oracles.assert_equal(persample.clipped_sum(x, y, clip), gradients, clip)
        assert persample.fallback is None


@pytest.mark.parametrize("name", LAYERS)
def test_float32_agrees_with_float64(name):
    module, x, y = example(name)
    exact = PerSample(module, loss).clipped_sum(x, y, 1.0)
    module, y = module.float(), y.float()
    found = PerSample(module, loss).clipped_sum(x.float() if x.is_floating_point() else x, y, 1.0)
    torch.testing.assert_close(found.norms, exact.norms, rtol=3e-5, atol=0)  # rounded up
    for a, b in zip(found.sums, exact.sums):
        assert a.dtype == b.dtype == torch.float64
        assert float((a - b).norm()) <= 3e-5 * float(b.norm()) + 1e-7


@pytest.mark.parametrize("name", [n for n in LAYERS if n.startswith(("conv", "linear"))])
def test_no_room_for_per_sample_gradients_changes_nothing(name, monkeypatch):
    module, x, y = example(name)
    kept = PerSample(module, loss).clipped_sum(x, y, 1.0)
    monkeypatch.setattr("cupola.privacy.persample.clipping.ROOM", 0)
    made = PerSample(module, loss).clipped_sum(x, y, 1.0)
    assert bool((made.norms >= kept.norms * (1 - 1e-12)).all())  # they count the terms as well
    torch.testing.assert_close(made.norms, kept.norms, rtol=2e-4, atol=0)
    without = PerSample(module, loss).clipped_sum(x, y, math.inf)
    monkeypatch.undo()
    with_room = PerSample(module, loss).clipped_sum(x, y, math.inf)
    for a, b in zip(without.sums, with_room.sums):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


def test_few_positions_go_by_gram_matrices(monkeypatch):
    called = []
    gram = convolution._gram
    monkeypatch.setattr(convolution, "_gram", lambda *a: called.append(1) or gram(*a))
    names = [name for name in LAYERS if "few positions" in name]
    for name in names:
        module, x, y = example(name)
        PerSample(module, loss).clipped_sum(x, y, 1.0)
    assert len(called) >= 2 * len(names)  # in the trials and in the batch
    called.clear()
    module, x, y = example("conv2d, large")
    PerSample(module, loss).clipped_sum(x, y, 1.0)
    assert not called
