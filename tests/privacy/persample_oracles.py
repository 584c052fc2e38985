"""Slow, obvious per-sample gradients to compare with, and the comparison itself."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from cupola.privacy.persample import Clipped


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def alone(module: nn.Module, loss, x: Tensor, y: Tensor) -> list[Tensor]:
    """Every sample in a batch of its own; (n, *shape) for each trainable parameter."""
    rows = []
    for i in range(len(x)):
        value = loss(module(x[i : i + 1]), y[i : i + 1]).sum()
        found = torch.autograd.grad(value, trained(module), materialize_grads=True)
        rows.append([g.to_dense() for g in found])
    return [torch.stack(column) for column in zip(*rows)]


def mapped(module: nn.Module, loss, x: Tensor, y: Tensor) -> list[Tensor]:
    """torch.func's vmap(grad)."""
    parameters = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}

    def value(parameters, x, y):
        return loss(functional_call(module, parameters, (x[None],)), y[None]).sum()

    return list(vmap(grad(value), (None, 0, 0))(parameters, x, y).values())


def by_opacus(module: nn.Module, loss, x: Tensor, y: Tensor) -> list[Tensor]:
    """Opacus' hooks; the module is as it was afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule

        hooked = GradSampleModule(module, loss_reduction="sum")
        try:
            loss(hooked(x), y).sum().backward()
            return [p.grad_sample.detach().clone() for p in trained(module)]
        finally:
            hooked.zero_grad()
            hooked.to_standard_module()
            for p in module.parameters():
                p.grad = None


def norms(gradients: list[Tensor]) -> Tensor:
    return torch.cat([g.flatten(1) for g in gradients], 1).norm(dim=1)


def assert_equal(
    found: Clipped,
    gradients: list[Tensor],
    clip: float,
    tolerance: float = 1e-6,
    *,
    ordered: bool = True,
) -> None:
    """Norms and clipped sums are those of the per-sample gradients (n, *shape); norms are rounded
    up, by as much as a thousandth where terms cancel, and the sums follow them.

    ordered: False if the gradients come in another order of parameters; then sums are compared by
    their norms.
    """
    expected = norms(gradients)
    assert float(expected.max()) > 0
    assert bool((found.norms >= expected * (1 - tolerance)).all())
    assert bool((found.norms <= expected * (1 + tolerance + 1e-3)).all())
    weights = (clip / found.norms).clamp_max(1).to(expected)
    sums = [torch.einsum("i,i...->...", weights, g) for g in gradients]
    assert len(found.sums) == len(sums)
    if not ordered:
        a, b = (sorted(float(t.norm()) for t in side) for side in (found.sums, sums))
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), rtol=tolerance, atol=1e-12)
        return
    for total, summed in zip(found.sums, sums):
        assert total.shape == summed.shape
        assert float((total - summed).norm()) <= tolerance * float(summed.norm()) + 1e-12
