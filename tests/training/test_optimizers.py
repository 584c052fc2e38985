"""Optimizers against torch.optim, Reddi et al. (2021) and Wang et al. (2020, FedNova)."""

import numpy as np
import pytest
import torch

from cupola.training import Local, Server
from cupola.training.optimizers import LocalOptimizer, effective_steps, server_step

STEPS = 7
SHAPES = [(4, 3), (3,)]


def gradients(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]


@pytest.mark.parametrize("decay", [0.0, 0.03])
@pytest.mark.parametrize(
    ("choice", "reference"),
    [
        ({}, {}),
        ({"momentum": 0.9}, {"momentum": 0.9}),
        ({"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "nesterov": True}),
        ({"optimizer": "adam"}, {"betas": (0.9, 0.999), "eps": 1e-8}),
        (
            {"optimizer": "adam", "betas": (0.5, 0.9), "eps": 1e-3},
            {"betas": (0.5, 0.9), "eps": 1e-3},
        ),
    ],
)
def test_local_optimizer_is_torchs(choice, reference, decay):
    ours, theirs = gradients(0), [torch.nn.Parameter(p) for p in gradients(0)]
    kind = torch.optim.Adam if choice.get("optimizer") == "adam" else torch.optim.SGD
    optimizer = LocalOptimizer(Local(**choice, weight_decay=decay), 0.1)
    known = kind(theirs, lr=0.1, weight_decay=decay, **reference)
    for step in range(STEPS):
        optimizer.step(ours, gradients(step + 1))
        for parameter, gradient in zip(theirs, gradients(step + 1)):
            parameter.grad = gradient
        known.step()
    for a, b in zip(ours, theirs):
        assert float((a - b.detach()).abs().max()) <= 1e-12


def test_a_stack_that_shrinks_equals_models_of_their_own():
    choice = Local(momentum=0.8, weight_decay=0.1)
    stack = [torch.stack([p, 2 * p, 3 * p]) for p in gradients(0)]
    alone = [[f * p for p in gradients(0)] for f in (1, 2, 3)]
    together = LocalOptimizer(choice, 0.1)
    own = [LocalOptimizer(choice, 0.1) for _ in alone]
    for step, active in enumerate((3, 3, 2, 1, 1)):
        together.active(active)
        pushes = [torch.stack([g * (k + 1) for k in range(active)]) for g in gradients(step + 1)]
        together.step([p[:active] for p in stack], pushes)
        for k in range(active):
            own[k].step(alone[k], [g * (k + 1) for g in gradients(step + 1)])
    for k in range(3):
        assert all(torch.equal(s[k], p) for s, p in zip(stack, alone[k]))


def reddi(kind, w, updates, lr, b1, b2, tau):
    """Algorithm 2 of Reddi et al. 2021, with v_0 = tau^2 and no bias correction.

    There Delta_t is the mean change of the sites' models and x moves by +lr; an update here is the
    opposite, start minus end, so that x moves by -lr.
    """
    m, v = np.zeros_like(w), np.full_like(w, tau**2)
    for delta in updates:
        m = b1 * m + (1 - b1) * delta
        if kind == "adagrad":
            v = v + delta**2
        elif kind == "yogi":
            v = v - (1 - b2) * delta**2 * np.sign(v - delta**2)
        else:
            v = b2 * v + (1 - b2) * delta**2
        w = w - lr * m / (np.sqrt(v) + tau)
    return w


def run_server(choice, w, updates, lr):
    slots = {}
    for update in updates:
        model, slots = server_step(choice, lr, {"w": w}, {"w": update}, slots)
        w = model["w"]
    return w


UPDATES = list(np.random.default_rng(3).normal(scale=0.1, size=(STEPS, 5)))
W = np.random.default_rng(4).normal(size=5)


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_adaptive_server_steps_are_those_of_reddi(kind):
    choice = Server(optimizer=kind, betas=(0.9, 0.95), eps=1e-2)
    ours = run_server(choice, W, UPDATES, 0.05)
    assert np.abs(ours - reddi(kind, W, UPDATES, 0.05, 0.9, 0.95, 1e-2)).max() <= 1e-14


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_server_sgd_is_torchs(momentum, decay):
    parameter = torch.nn.Parameter(torch.from_numpy(W.copy()))
    known = torch.optim.SGD([parameter], lr=0.3, momentum=momentum, weight_decay=decay)
    for update in UPDATES:
        parameter.grad = torch.from_numpy(update)
        known.step()
    ours = run_server(Server(momentum=momentum, weight_decay=decay), W, UPDATES, 0.3)
    assert np.abs(ours - parameter.detach().numpy()).max() <= 1e-14


def test_server_step_changes_no_input_and_keeps_the_models_type():
    model = {"w": W.astype(np.float32)}
    update, before = {"w": UPDATES[0].copy()}, model["w"].copy()
    moved, slots = server_step(Server(momentum=0.5), 1.0, model, update, {})
    kept = slots["momentum/w"].copy()
    server_step(Server(momentum=0.5), 1.0, moved, update, slots)
    assert moved["w"].dtype == np.float32
    assert (model["w"] == before).all()
    assert (update["w"] == UPDATES[0]).all()
    assert (slots["momentum/w"] == kept).all()


@pytest.mark.parametrize("tau", [1, 2, 5, 12])
def test_effective_steps_are_fednovas(tau):
    """|a_i|_1 of Wang et al. 2020, section 4: plain SGD, momentum, proximal SGD."""
    rho, lr, mu = 0.9, 0.1, 0.5
    assert effective_steps(Local(), tau, lr) == tau
    with_momentum = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    assert effective_steps(Local(momentum=rho), tau, lr) == pytest.approx(with_momentum, rel=1e-12)
    proximal = (1 - (1 - lr * mu) ** tau) / (lr * mu)
    assert effective_steps(Local(proximal=mu), tau, lr) == pytest.approx(proximal, rel=1e-12)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("proximal", [0.0, 0.5])
def test_effective_steps_are_the_way_made_with_unit_gradients(nesterov, proximal):
    lr, choice = 0.1, Local(momentum=0.7, nesterov=nesterov, proximal=proximal)
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=lr, momentum=0.7, nesterov=nesterov)
    for _ in range(STEPS):
        w.grad = 1.0 + proximal * w.detach()
        optimizer.step()
    assert effective_steps(choice, STEPS, lr) == pytest.approx(-float(w.detach()) / lr, rel=1e-12)
