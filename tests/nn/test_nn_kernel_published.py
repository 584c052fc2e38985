"""Layers and networks against tensors that the published code gave for the same weights.

published_kernelnorm.npz holds outputs of reza-nasirigerdeh/norm-torch and dp-torch, recorded in
float64. Weights and inputs are Philox's words (`numbers`), parameter by parameter in the networks'
order, so that they need not be kept; layers' masks are in the file. Networks were called without
dropout of the statistics.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from cupola.nn import build, kernelnorm
from cupola.nn.kernelnorm import KernelNorm, KernelNorm1d, KernelNorm2d, KNConv, KNConv2d
from cupola.nn.sources import load, table

PUBLISHED = np.load(Path(__file__).with_name("published_kernelnorm.npz"))
KERNEL, MISH = {"norm": "kernel"}, {"norm": "kernel", "activation": "mish"}


def numbers(key: int, *shape: int) -> Tensor:
    """Uniform in (-0.5, 0.5), float64."""
    words = np.random.Philox(key=key).random_raw(int(np.prod(shape)))
    return torch.from_numpy((words >> np.uint64(11)) * 2.0**-53 - 0.5).view(shape)


def filled(module: nn.Module) -> nn.Module:
    module = module.double().eval()
    with torch.no_grad():
        for key, p in enumerate(module.parameters()):
            scale = (12 / p[0].numel()) ** 0.5 if p.dim() > 1 else 1.0
            p.copy_(numbers(key, *p.shape) * scale)
    for layer in module.modules():
        if isinstance(layer, KNConv | KernelNorm):
            layer.evaluation = "off"
    return module


def equal(found: Tensor, name: str) -> None:
    expected = torch.from_numpy(PUBLISHED[name])
    torch.testing.assert_close(found.detach(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "size", "options"),
    [
        ("resnet8", 16, MISH),
        ("densenet20x16", 8, MISH | {"carried": "activated"}),
        pytest.param("knresnet13", 16, MISH, marks=pytest.mark.slow),
        pytest.param("preactresnet18", 16, KERNEL, marks=pytest.mark.slow),
        *(pytest.param(f"knresnet{n}", 16, {}, marks=pytest.mark.slow) for n in (18, 34, 50)),
    ],
)
def test_networks_give_the_published_outputs(name, size, options):
    module = filled(build(name, (3, size, size), 10, 0, **options))
    with torch.no_grad():
        equal(module(numbers(1000, 1, 3, size, size) + 0.5)[0], name)


def test_what_densenet_carries_on_is_another_function():
    module = filled(build("densenet20x16", (3, 8, 8), 10, 0, **MISH))
    found = module(numbers(1000, 1, 3, 8, 8) + 0.5)[0].detach()
    assert not np.allclose(found, PUBLISHED["densenet20x16"], atol=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("number", [18, 34, 50])
def test_a_source_takes_the_authors_names_and_gives_his_outputs(number, tmp_path):
    name = f"knresnet{number}"
    (entry,) = (e for e in table() if e.name == name)
    module = filled(build(name, (3, 96, 96), 1000, 0, stem="high"))
    state = list(module.parameters())
    names = [f"{layer}.{part}" for layer in entry.layers() for part in ("weight", "bias")]
    path = str(tmp_path / "weights.safetensors")
    save_file({n: p.detach() for n, p in zip(names, state, strict=True)}, path)
    loaded = load(name, path, size=96).module.double().eval()
    for layer in loaded.modules():
        if isinstance(layer, KNConv | KernelNorm):
            layer.evaluation = "off"
    with torch.no_grad():
        found = loaded(numbers(1000, 1, 3, 96, 96) + 0.5)[0, :10]
    expected = PUBLISHED[f"{name} high"]  # weights went through float32
    assert np.allclose(found, expected, atol=1e-4)


def test_a_convolution_with_a_mask():
    layer = KNConv2d(
        4, 6, (3, 2), (2, 1), ((2, 1), (1, 0)), groups=2, dropout=0.3, dtype=torch.float64
    )
    drop = torch.from_numpy(~PUBLISHED["conv kept"])
    equal(filled(layer).masked(numbers(1001, 2, 4, 7, 6) + 0.2, drop)[0], "conv out")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("norm2d", KernelNorm2d(2, 1, 1, dropout=0.3)),
        ("norm1d", KernelNorm1d(3, 2, 1, dropout=0.3)),
    ],
)
def test_norms_with_a_mask_per_window(name, layer, monkeypatch):
    x = numbers(1001, 2, 4, 7, 6) + 0.2
    drop = torch.from_numpy(~PUBLISHED[f"{name} kept"])
    monkeypatch.setattr(kernelnorm, "drawn", lambda shape, *_: drop.view(shape))
    equal(layer(x if name == "norm2d" else x.flatten(2)), f"{name} out")
