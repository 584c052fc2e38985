"""Per-sample gradients of kernel-normalised layers, dropout included: rules, vmap, Opacus."""

from __future__ import annotations

import math

import persample_oracles as oracles
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import cupola.privacy.persample.knconv as kernel_rules
from cupola.errors import PlanError
from cupola.nn import build, find_loss, kernelnorm
from cupola.nn.kernelnorm import KernelNorm2d, KNConv1d, KNConv2d, KNConv3d
from cupola.nn.normalisation import LocalContextNorm, PositionalNorm
from cupola.privacy.persample import PerSample, clipping

CONV = {1: KNConv1d, 2: KNConv2d, 3: KNConv3d}


def squares(output: Tensor, y: Tensor) -> Tensor:
    """A loss with gradients everywhere; y (n,) makes samples differ."""
    return (output.flatten(1).sin() * y[:, None]).sum(1) + output.flatten(1).square().mean(1)


@st.composite
def cases(draw):
    rank = draw(st.integers(1, 3))
    pairs = tuple(draw(st.tuples(st.integers(0, 1), st.integers(0, 1))) for _ in range(rank))
    wide = rank < 3 and draw(st.booleans())  # windows are copied for many outputs only
    groups = 1 if wide else draw(st.sampled_from([1, 2]))
    mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
    layer = CONV[rank](
        4, 64 if wide else 6, draw(st.integers(1, 3)), draw(st.integers(1, 2)), pairs,
        draw(st.integers(1, 2)), groups, draw(st.booleans()), mode,
        dropout=draw(st.sampled_from([0.0, 0.3])),
    )  # fmt: skip
    # In evaluation dropout means expected statistics, and there are no draws.
    return layer.eval(), (3, 4, *[draw(st.integers(5, 7)) for _ in range(rank)])


@given(cases(), st.booleans(), st.booleans(), st.sampled_from([1, 2]))
@settings(max_examples=60, deadline=None)
def test_rules_equal_samples_alone(case, little_room, by_gram, copies):
    layer, shape = case
    layer = layer.double()
    x = torch.rand(shape, dtype=torch.float64).repeat_interleave(copies, 0)
    x = x + 0.1 * torch.rand_like(x)
    y = torch.linspace(0.5, 2, len(x), dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        if little_room:
            patch.setattr("cupola.privacy.persample.clipping.ROOM", 1)
            patch.setattr("cupola.privacy.persample.convolution.WINDOWS", 500)
        if by_gram:  # else only layers of many channels and few places go that way
            patch.setattr("cupola.privacy.persample.convolution.GRAM", 0)
        engine = PerSample(layer, squares)
        found = engine.clipped_sum(x, y, 0.5, multiplicity=copies)
    assert engine.fallback is None
    expected = [g.unflatten(0, (-1, copies)).mean(1) for g in oracles.alone(layer, squares, x, y)]
    oracles.assert_equal(found, expected, 0.5, 1e-9)


@pytest.fixture
def same_masks(monkeypatch):
    """Masks as functions of their number and shape; samples in company or alone get the same."""
    masks: dict[int, Tensor] = {}
    state = {"calls": 0, "row": None}

    def drawn(shape, dropout, device):
        torch.rand(1)  # so that it shows as a draw
        call = state["calls"]
        state["calls"] += 1
        if call not in masks:
            generator = torch.Generator().manual_seed(call)
            masks[call] = torch.rand((8, *shape[1:]), generator=generator) < dropout
        rows = slice(shape[0]) if state["row"] is None else slice(state["row"], state["row"] + 1)
        return masks[call][rows].to(device)

    monkeypatch.setattr(kernelnorm, "drawn", drawn)
    return state


def network() -> nn.Module:
    return nn.Sequential(
        KNConv2d(2, 8, 3, padding=((1, 0), (0, 1)), dropout=0.3),
        nn.Mish(),
        KNConv2d(8, 64, 2, 2, dropout=0.2),
        KernelNorm2d(dropout=0.25),
        nn.Flatten(),
        nn.Linear(256, 3),
    ).double()


def with_masks(state, module, x, y) -> list[Tensor]:
    """Every sample alone, with its own rows of the masks."""
    rows = []
    for i in range(len(x)):
        state.update(calls=0, row=i)
        rows.append(oracles.alone(module, squares, x[i : i + 1], y[i : i + 1]))
    return [torch.cat(column) for column in zip(*rows)]


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(5, 2, 6, 6, generator=generator, dtype=torch.float64)
    return x, torch.linspace(0.5, 2, 5, dtype=torch.float64)


def test_dropout_masks_are_those_of_the_forward_pass(same_masks, monkeypatch):
    monkeypatch.setattr(clipping, "depends_on_company", lambda *_: None)  # else one by one
    module, (x, y) = network(), batch()
    expected = with_masks(same_masks, module, x, y)
    same_masks.update(row=None, calls=0)
    engine = PerSample(module, squares, microbatch=len(x))
    engine.clipped_sum(x, y, 1.0)  # the first call tries book-keeping, and draws for it
    assert engine.fallback is None
    same_masks["calls"] = 0
    oracles.assert_equal(engine.clipped_sum(x, y, 0.7), expected, 0.7, 1e-9)


def test_opacus_gives_the_same_with_the_same_masks(same_masks):
    pytest.importorskip("opacus")
    kernel_rules.register_with_opacus()
    try:
        module, (x, y) = network(), batch()
        expected = with_masks(same_masks, module, x, y)
        for layer in module.modules():
            getattr(layer, "noted", []).clear()
        same_masks.update(row=None, calls=0)
        found = oracles.by_opacus(module, squares, x, y)
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
        assert not any(getattr(layer, "noted", []) for layer in module.modules())
    finally:  # other tests in this process let Opacus map these layers
        from opacus.grad_sample import GradSampleModule

        for kind in CONV.values():
            kind.notes = False
            GradSampleModule.GRAD_SAMPLERS.pop(kind, None)


def test_vmap_gives_the_same_without_dropout():
    module, (x, y) = network(), batch()
    for layer in module.modules():
        if hasattr(layer, "dropout"):
            layer.dropout = 0.0
    oracles.assert_equal(
        PerSample(module, squares).clipped_sum(x, y, 0.3), oracles.mapped(module, squares, x, y),
        0.3, 1e-9,
    )  # fmt: skip


def test_masks_per_window_go_through_vmap():
    module, (x, y) = nn.Sequential(KNConv2d(2, 3, 2, dropout=0.2, per="window")).double(), batch()
    engine = PerSample(module, squares)
    found = engine.clipped_sum(x, y, 1.0)
    assert "window" in engine.fallback
    assert bool((found.norms > 0).all())


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.detach().mean(0)  # no gradient betrays it


@pytest.mark.parametrize("always", [False, True])
@pytest.mark.parametrize("layer", [KNConv2d, KernelNorm2d])
def test_mixing_of_samples_is_found_behind_dropout(layer, always):
    """Masks are switched off where samples are compared with samples alone."""
    wide = (2, 2, 1) if layer is KNConv2d else (1,)
    random = layer(*wide, dropout=0.3, evaluation="random" if always else "expected")
    module = nn.Sequential(random, nn.Conv2d(2, 2, 1), Centred()).double()
    with pytest.raises(PlanError, match="depends on the other samples"):
        PerSample(module, squares).clipped_sum(*batch(), 1.0)


@pytest.mark.parametrize("layer", [PositionalNorm(4), LocalContextNorm(4, window=3)])
def test_local_norms_have_rules(layer):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4, 4, 5, 5, generator=generator, dtype=torch.float64)
    y, layer = torch.linspace(1, 2, 4, dtype=torch.float64), layer.double()
    engine = PerSample(layer, squares)
    found = engine.clipped_sum(x, y, 0.5)
    assert engine.fallback is None
    oracles.assert_equal(found, oracles.alone(layer, squares, x, y), 0.5, 1e-9)


@pytest.mark.parametrize("name", ["resnet8", "resnet9", "knresnet13", "densenet20x16", "vgg6"])
def test_models_are_kept_books_of(name):
    loss = find_loss("cross_entropy")
    module = build(name, (3, 16, 16), 10, 0, norm="kernel")
    x, y = torch.rand(3, 3, 16, 16), torch.arange(3)
    engine = PerSample(module, loss)
    found = engine.clipped_sum(x, y, math.inf)
    assert engine.fallback is None
    assert bool(found.norms.isfinite().all())
