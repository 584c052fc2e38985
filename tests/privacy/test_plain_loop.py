"""`make_private`: a loop as it was, with clipped and noised gradients; and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import cupola.privacy
from cupola.errors import PlanError
from cupola.privacy import accounting, make_private
from cupola.privacy.events import SampledGaussian
from cupola.privacy.plain_loop import Private
from cupola.privacy.private_model import Output

N, SIZE = 120, 20


class Loop:
    """A plain loop's things."""

    def __init__(self, model: nn.Module | None = None, **options) -> None:
        draw = torch.Generator().manual_seed(0)
        self.x, self.y = torch.randn(N, 6, generator=draw), torch.arange(N) % 3
        self.net = model or nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self.sgd = torch.optim.SGD(self.net.parameters(), lr=0.5)
        loader = DataLoader(TensorDataset(self.x, self.y), batch_size=SIZE, shuffle=True)
        self.options = {"noise_multiplier": 1.0, "seed": 1, **options}
        self.private = make_private(self.net, self.sgd, loader, **self.options)


def by_hand(net: nn.Module, x: torch.Tensor, y: torch.Tensor, clip: float) -> list[torch.Tensor]:
    """Clipped gradients, one sample after the other."""
    sums = [torch.zeros_like(p) for p in net.parameters()]
    for i in range(len(x)):
        loss = F.cross_entropy(net(x[i : i + 1]), y[i : i + 1])
        each = torch.autograd.grad(loss, list(net.parameters()))
        norm = torch.cat([g.reshape(-1) for g in each]).norm()
        for total, gradient in zip(sums, each):
            total += gradient * min(1.0, clip / float(norm))
    return sums


def test_without_noise_the_gradient_is_the_clipped_mean() -> None:
    loop = Loop(noise_multiplier=0.0, clip=0.5)
    model, optimizer, loader = loop.private
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(model(x), y)
        loss.backward()
        for p, total in zip(loop.net.parameters(), by_hand(loop.net, x, y, 0.5)):
            assert torch.allclose(p.grad, total / SIZE, atol=1e-6)
        assert loss.item() == pytest.approx(
            float(F.cross_entropy(loop.net(x), y).detach()), rel=1e-5
        )
        optimizer.step()
    assert loop.private.steps == N // SIZE


def test_the_noise_is_what_was_asked_for() -> None:
    loop = Loop(nn.Linear(6, 3), noise_multiplier=2.0, clip=3.0)
    model, optimizer, loader = loop.private
    drawn = []
    for _ in range(40):
        for x, y in loader:
            clean = by_hand(loop.net, x, y, 3.0)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            drawn += [p.grad - c / SIZE for p, c in zip(loop.net.parameters(), clean)]
    noise = torch.cat([part.reshape(-1) for part in drawn])
    assert float(noise.std()) == pytest.approx(2.0 * 3.0 / SIZE, rel=0.05)
    assert abs(float(noise.mean())) < 0.01


def test_target_and_ledger_agree_with_the_accountant() -> None:
    loop = Loop(noise_multiplier=None, epsilon=2.0, epochs=3, delta=1e-4)
    model, optimizer, loader = loop.private
    for _ in range(3):
        for x, y in loader:
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    spent = SampledGaussian(SIZE / N, loop.private.noise_multiplier, 18)
    assert loop.private.epsilon(1e-4) == accounting.epsilon([spent], 1e-4)
    assert 1.99 < loop.private.epsilon(1e-4) <= 2.0
    assert loop.private.simulated
    x, y = next(iter(loader))
    with pytest.raises(PlanError, match="18 steps keep the epsilon"):
        F.cross_entropy(model(x), y).backward()


def test_samples_are_poisson_and_an_empty_one_is_a_step() -> None:
    loop = Loop()
    sizes = [len(x) for _ in range(60) for x, _ in loop.private.loader]
    assert np.mean(sizes) == pytest.approx(SIZE, rel=0.05)
    assert np.var(sizes) == pytest.approx(SIZE * (1 - SIZE / N), rel=0.25)
    rare = DataLoader(TensorDataset(loop.x, loop.y), batch_size=1)
    sgd = torch.optim.SGD(loop.net.parameters(), lr=0.1)
    model, _, loader = make_private(loop.net, sgd, rare, noise_multiplier=1.0, seed=2)
    for x, y in loader:
        if not len(x):
            sgd.zero_grad()
            F.cross_entropy(model(x), y).backward()
            assert all(bool(p.grad.any()) for p in loop.net.parameters())
            break
    else:
        raise AssertionError("no sample was empty")


def test_the_operating_system_gives_the_noise_by_default() -> None:
    loop = Loop(seed=None)
    assert not loop.private.simulated
    again = Loop(seed=None)
    assert [len(x) for x, _ in loop.private.loader] != [len(x) for x, _ in again.private.loader]


def test_evaluation_is_the_model_itself() -> None:
    loop = Loop()
    model, _, loader = loop.private
    x, y = next(iter(loader))
    output = model(x)
    assert isinstance(output, Output)
    assert output.argmax(1).shape == y.shape
    assert torch.equal(torch.softmax(output, 1), torch.softmax(loop.net(x), 1))
    model.eval()
    assert torch.equal(model(x), loop.net(x))
    model.train()
    with torch.no_grad():
        assert torch.equal(model(x), loop.net(x))
    assert list(model.state_dict()) == list(loop.net.state_dict())


def batch(loop: Loop):
    return next(iter(loop.private.loader))


def plain_gradient(loop: Loop) -> None:
    x, y = batch(loop)
    F.cross_entropy(loop.net(x), y).backward()
    loop.sgd.step()


def added_gradient(loop: Loop) -> None:
    x, y = batch(loop)
    F.cross_entropy(loop.private.model(x), y).backward()
    loop.net(x).sum().backward()
    loop.sgd.step()


def through_the_output(loop: Loop) -> None:
    x, y = batch(loop)
    F.cross_entropy(loop.private.model(x).view(-1, 3), y).backward()


def twice(loop: Loop) -> None:
    x, y = batch(loop)
    for _ in range(2):
        F.cross_entropy(loop.private.model(x), y).backward()


def a_part(loop: Loop) -> None:
    x, y = batch(loop)
    F.cross_entropy(loop.private.model(x[1:]), y[1:]).backward()


def other_data(loop: Loop) -> None:
    F.cross_entropy(loop.private.model(loop.x), loop.y).backward()


def closure(loop: Loop) -> None:
    loop.sgd.step(lambda: F.cross_entropy(loop.net(loop.x), loop.y))


def summed(loop: Loop) -> None:
    x, y = batch(loop)
    F.cross_entropy(loop.private.model(x), y, reduction="sum").backward()


def penalised(loop: Loop) -> None:
    x, y = batch(loop)
    (
        F.cross_entropy(loop.private.model(x), y)
        + sum(p.square().sum() for p in loop.net.parameters())
    )


def scalar_loss(loop: Loop) -> None:
    x, y = batch(loop)
    loop.private.backward(x, y, lambda output, y: F.cross_entropy(output, y))


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (plain_gradient, "not the one that `backward` has noised"),
        (added_gradient, "not the one that `backward` has noised"),
        (through_the_output, "not private"),
        (twice, "without a new batch"),
        (a_part, "was given"),
        (other_data, "without a new batch"),
        (closure, "closure"),
        (summed, "reduction must be 'mean'"),
        (penalised, "cannot be added"),
        (scalar_loss, "one value"),
    ],
)
def test_gradients_that_are_not_private_are_refused(step, said: str) -> None:
    loop = Loop()
    before = [p.detach().clone() for p in loop.net.parameters()]
    with pytest.raises(PlanError, match=said):
        step(loop)
    assert all(torch.equal(a, b) for a, b in zip(before, loop.net.parameters()))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": 3}, "model is an int"),
        ({"optimizer": None}, "optimizer is a NoneType"),
        ({"loader": [1]}, "loader is a list"),
        ({"model": nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))}, "take group normalisation"),
        ({"model": nn.Linear(6, 3)}, "not the model's"),
        ({"loader": DataLoader(TensorDataset(torch.zeros(0, 6)))}, "no rows"),
        ({"loader": DataLoader(TensorDataset(torch.zeros(2, 6)), batch_size=None)}, "batch_size"),
        ({"noise_multiplier": None}, "either epsilon"),
        ({"epsilon": 1.0}, "either epsilon"),
        ({"noise_multiplier": None, "epsilon": 1.0}, "epochs = None"),
        ({"noise_multiplier": None, "epsilon": 1.0, "epochs": 1.5}, "epochs = 1.5"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be"),
        ({"clip": 0.0}, "clip must be"),
        ({"seed": -1}, "seed must be"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"delta": 1.0}, "delta must be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_private_is_refused(changed, said: str) -> None:
    loop = Loop()
    given = {
        "model": loop.net,
        "optimizer": loop.sgd,
        "loader": DataLoader(TensorDataset(loop.x, loop.y), batch_size=SIZE),
        "noise_multiplier": 1.0,
        **changed,
    }
    if isinstance(changed.get("model"), nn.Sequential):
        given["optimizer"] = torch.optim.SGD(changed["model"].parameters(), lr=0.1)
    with pytest.raises(PlanError) as caught:
        make_private(**given)
    assert said in str(caught.value)


def test_own_losses_and_a_weighted_one() -> None:
    loop = Loop(noise_multiplier=0.0, clip=1e3)
    x, y = batch(loop)
    losses = loop.private.backward(x, y, lambda o, t: F.cross_entropy(o, t, reduction="none"))
    assert losses.shape == (len(x),)
    weight = torch.tensor([1.0, 2.0, 0.5])
    x, y = batch(loop)
    loop.sgd.zero_grad()
    nn.CrossEntropyLoss(weight=weight)(loop.private.model(x), y).backward()
    whole = (weight[y] * F.cross_entropy(loop.net(x), y, reduction="none")).sum() / SIZE
    for p, g in zip(loop.net.parameters(), torch.autograd.grad(whole, list(loop.net.parameters()))):
        assert torch.allclose(p.grad, g, atol=1e-6)


def test_accountant_takes_keywords_only() -> None:
    told = {"rate": 0.01, "noise_multiplier": 1.0, "steps": 1000}
    found = cupola.privacy.epsilon(**told, delta=1e-5)
    assert found == accounting.epsilon([SampledGaussian(0.01, 1.0, 1000)], 1e-5)
    with pytest.raises(TypeError):
        cupola.privacy.epsilon(0.01, 1.0, 1000, 1e-5)  # type: ignore[misc]
    noise = cupola.privacy.noise_multiplier(epsilon=found, rate=0.01, steps=1000, delta=1e-5)
    assert noise == pytest.approx(1.0, rel=2e-3)
    for wrong, said in (({"rate": 2}, "rate"), ({"noise_multiplier": -1}, "noise_multiplier"),
                        ({"delta": 0}, "delta"), ({"steps": 1.5}, "count")):  # fmt: skip
        with pytest.raises(PlanError, match=said):
            cupola.privacy.epsilon(**{**told, "delta": 1e-5, **wrong})


def test_private_unpacks_as_opacus_does() -> None:
    loop = Loop()
    assert isinstance(loop.private, Private)
    model, optimizer, loader = loop.private
    assert optimizer is loop.sgd
    assert len(loader) == N // SIZE
    assert sum(p.numel() for p in model.parameters()) == 83
