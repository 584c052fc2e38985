"""Frozen convolutions: the same gradients, and no input kept."""

import copy

import pytest
import torch
from torch import nn

from cupola.nn.memory_saving import LeanConv2d, make_all_lean, make_lean

LAYERS = [
    (lambda: nn.Conv1d(4, 6, 3, dilation=2), (5, 4, 9)),
    (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2, bias=False), (5, 4, 9, 9)),
    (lambda: nn.Conv2d(2, 3, 3, (2, 3)), (5, 2, 10, 11)),  # the last row and columns are not seen
    (lambda: nn.Conv3d(2, 3, 2), (3, 2, 4, 4, 4)),
]


def pair(make):
    plain = make().double()
    lean = copy.deepcopy(plain).requires_grad_(False)
    make_lean(lean)
    return plain, lean


def kept(layer, x):
    found = []

    def pack(tensor):
        found.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        layer(x)
    return found


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_the_input_is_not_kept(make, shape):
    plain, lean = pair(make)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True) * 1.0
    assert torch.Size(shape) in kept(plain.requires_grad_(False), x)  # torch keeps it
    assert kept(lean, x) == [lean.weight.shape]
    assert not kept(lean, x.detach())


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_gradients_are_equal(make, shape):
    plain, lean = pair(make)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    found = [torch.autograd.grad(layer(x).square().sum(), x)[0] for layer in (plain, lean)]
    assert torch.equal(*found)
    many = torch.randn(3, *shape, dtype=torch.float64)
    each = [
        torch.func.vmap(torch.func.grad(lambda x, layer=layer: layer(x).square().sum()))(many)
        for layer in (plain, lean)
    ]
    assert torch.allclose(*each)


def test_others_stay_as_they_are():
    trained, half = nn.Conv2d(1, 1, 3), nn.Conv2d(1, 1, 3)
    half.weight.requires_grad_(False)
    same = nn.Conv2d(1, 1, 3, padding="same").requires_grad_(False)
    ring = nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular").requires_grad_(False)
    frozen = nn.Conv2d(1, 1, 3).requires_grad_(False)
    make_lean(nn.ModuleList([trained, half, same, ring, frozen]))
    assert [type(m) for m in (trained, half, same, ring)] == [nn.Conv2d] * 4
    assert type(frozen) is LeanConv2d


@pytest.mark.parametrize("kind", [nn.ReLU, nn.ReLU6])
def test_a_rectifier_keeps_a_byte_for_each_value(kind):
    plain, lean = nn.Sequential(kind()), nn.Sequential(kind())
    make_all_lean(lean)
    x = torch.tensor([-1.0, 0.0, 0.5, 6.0, 7.0], requires_grad=True)
    types = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: types.append(t.dtype) or t, lambda t: t
    ):
        found = lean(x * 1.0)
    assert [t.itemsize for t in types] == [1]
    assert torch.equal(found, plain(x))
    weights = torch.arange(1.0, 6.0)
    assert torch.equal(
        *(torch.autograd.grad((m(x * 1.0) * weights).sum(), x)[0] for m in (plain, lean))
    )
    assert torch.equal(torch.func.vmap(lean)(x.detach()), plain(x.detach()))
