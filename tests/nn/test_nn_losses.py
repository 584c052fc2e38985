"""Losses: torch's values, one per sample, no sample touched by another, stacked over sites."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from cupola.errors import PlanError
from cupola.nn import default_loss, find_loss, loss_is_batch_dependent

N, C = 6, 4


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(seed: int, *shape: int, classes: int = C) -> Tensor:
    return torch.randint(0, classes, shape, generator=torch.Generator().manual_seed(seed))


def cases(seed: int = 0) -> list[tuple[str, dict, Tensor, Tensor]]:
    ignored = labels(seed, N, 3, 5)
    ignored[0] = 2
    return [
        ("cross_entropy", {}, draw(seed, N, C), labels(seed, N)),
        ("cross_entropy", {"label_smoothing": 0.1}, draw(seed, N, C), labels(seed, N)),
        ("cross_entropy", {"ignore_index": 2}, draw(seed, N, C, 3, 5), ignored),
        ("cross_entropy", {}, draw(seed, N, 7, C), labels(seed, N, 7)),
        ("focal", {"gamma": 1.5}, draw(seed, N, C), labels(seed, N)),
        ("focal", {"ignore_index": 2}, draw(seed, N, C, 3, 5), ignored),
        ("log", {}, draw(seed, N), labels(seed, N, classes=2)),
        ("log", {}, draw(seed, N, 1), labels(seed, N, classes=2)),
        ("log", {}, draw(seed, N, 2), labels(seed, N, classes=2)),
        ("squared_error", {}, draw(seed, N), draw(seed + 1, N)),
        ("squared_error", {}, draw(seed, N, 3), draw(seed + 1, N, 3)),
    ]


CASES = pytest.mark.parametrize(("name", "options", "output", "y"), cases())


@CASES
def test_one_value_per_sample_and_no_batch_dependence(name, options, output, y):
    loss = find_loss(name, **options)
    whole = loss(output, y)
    assert whole.shape == (N,)
    each = torch.cat([loss(output[i : i + 1], y[i : i + 1]) for i in range(N)])
    torch.testing.assert_close(whole, each, rtol=0, atol=1e-14)
    assert not loss_is_batch_dependent(loss, output, y)


@CASES
def test_stacked_over_sites_equals_one_by_one(name, options, output, y):
    loss = find_loss(name, **options)
    outputs = torch.stack([output, -output, 2 * output]).requires_grad_()
    ys = torch.stack([y, y.flip(0), y])
    together, single = (
        vmap(loss)(outputs, ys),
        torch.stack([loss(o, t) for o, t in zip(outputs, ys)]),
    )
    torch.testing.assert_close(together, single, rtol=0, atol=1e-13)
    gradients = [torch.autograd.grad(v.sum(), outputs)[0] for v in (together, single)]
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-13)


@given(st.integers(0, 10**6), st.permutations(range(N)))
@settings(max_examples=25, deadline=None)
def test_permuting_the_batch_permutes_the_losses(seed, order):
    for name, options, output, y in cases(seed):
        loss = find_loss(name, **options)
        torch.testing.assert_close(loss(output[order], y[order]), loss(output, y)[order])


def test_values_are_torchs_own():
    x, y = draw(1, N, C), labels(1, N)
    torch.testing.assert_close(find_loss("cross_entropy")(x, y).mean(), F.cross_entropy(x, y))
    smooth = F.cross_entropy(x, y, label_smoothing=0.2)
    torch.testing.assert_close(find_loss("cross_entropy", label_smoothing=0.2)(x, y).mean(), smooth)
    torch.testing.assert_close(find_loss("focal", gamma=0)(x, y).mean(), F.cross_entropy(x, y))
    p = x.softmax(1)[torch.arange(N), y]
    torch.testing.assert_close(find_loss("focal", gamma=2)(x, y), -((1 - p) ** 2) * p.log())
    pixels, mask = draw(2, N, C, 3, 5), labels(2, N, 3, 5)
    torch.testing.assert_close(
        find_loss("cross_entropy")(pixels, mask).mean(), F.cross_entropy(pixels, mask)
    )
    steps, tokens = draw(3, N, 7, C), labels(3, N, 7)
    torch.testing.assert_close(
        find_loss("cross_entropy")(steps, tokens).mean(),
        F.cross_entropy(steps.reshape(-1, C), tokens.reshape(-1)),
    )
    two, binary = draw(4, N, 2), labels(4, N, classes=2)
    torch.testing.assert_close(find_loss("log")(two, binary).mean(), F.cross_entropy(two, binary))
    torch.testing.assert_close(
        find_loss("log")(two[:, 0], binary).mean(),
        F.binary_cross_entropy_with_logits(two[:, 0], binary.double()),
    )
    a, b = draw(5, N, 3), draw(6, N, 3)
    torch.testing.assert_close(find_loss("squared_error")(a, b).mean(), F.mse_loss(a, b))


def test_ignored_elements_do_not_count_within_a_sample():
    x, y = draw(1, 2, C, 2, 2), labels(1, 2, 2, 2)
    y[0, 0], y[1] = 255, 255
    value = default_loss("segmentation")(x, y)
    kept = F.cross_entropy(x[:1, :, 1], y[:1, 1])
    torch.testing.assert_close(value, torch.stack([kept, torch.zeros_like(kept)]))


def test_focal_has_finite_gradients_at_certainty():
    x = torch.tensor([[100.0, -100.0]], requires_grad=True)
    (gradient,) = torch.autograd.grad(find_loss("focal", gamma=0.5)(x, torch.tensor([0])).sum(), x)
    assert torch.isfinite(gradient).all()


def test_squared_error_does_not_broadcast():
    loss = find_loss("squared_error")
    assert loss(torch.zeros(3, 1), torch.arange(3.0)).tolist() == [0, 1, 4]
    with pytest.raises(ValueError, match="shape"):
        loss(torch.zeros(3, 2), torch.zeros(3))


def test_defaults_by_kind_of_task():
    kinds = ("classification", "regression", "segmentation", "language")
    names = [default_loss(kind).name for kind in kinds]
    assert names == ["cross_entropy", "squared_error", "cross_entropy", "cross_entropy"]


def own_loss(output: Tensor, y: Tensor, power: int = 2) -> Tensor:
    return (output - y).abs() ** power


def test_own_losses_and_refusals():
    loss = find_loss(f"{__name__}:own_loss", power=3)
    assert loss(torch.zeros(2), torch.tensor([1.0, 2.0])).tolist() == [1, 8]
    for name, options, word in [
        ("cross_entrpy", {}, "did you mean 'cross_entropy'"),
        ("focal", {"gama": 2}, "loss.gama"),
        ("focal", {"gamma": -1}, "loss.gamma = -1"),
        ("cross_entropy", {"label_smoothing": 1}, "loss.label_smoothing"),
    ]:
        with pytest.raises(PlanError, match=word):
            find_loss(name, **options)
