"""A small trained source model, as a finished run leaves it; for tests of what is built on one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tomli_w
import torch
from safetensors.torch import save_file
from torch import nn

from cupola.base.registry import Entry
from cupola.nn.models import building as models
from cupola.nn.models.blocks import Residual

NAME = "tiny source"


@contextmanager
def registered() -> Iterator[None]:
    """Cupola knows the model meanwhile."""
    known = models._MODELS._entries
    known[NAME] = Entry(tiny, "for tests")
    try:
        yield
    finally:
        del known[NAME]


def tiny(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Convolutions with BatchNorm, one of them behind no convolution."""
    body = nn.Sequential(nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6))
    return nn.Sequential(
        nn.Conv2d(input_shape[0], 6, 3, 2, 1, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        Residual(body, None, nn.ReLU()),
        nn.BatchNorm2d(6),
        nn.Dropout(0.5),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, classes),
    )


def trained(channels: int = 3, classes: int = 12, seed: int = 0) -> nn.Module:
    """With statistics that are not those of a new layer."""
    generator = torch.Generator().manual_seed(seed)
    module = tiny((channels, 16, 16), classes)
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator) - 0.3)
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_var.add_(0.5)
    return module.eval()


def write(folder: Path, channels: int = 3, size: int = 16, classes: int = 12, seed: int = 0) -> str:
    """The folder of a run whose model it is."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {n: t for n, t in trained(channels, classes, seed).state_dict().items() if t.dim()}
    save_file(state, folder / "model.safetensors")
    mean = {"mean": [0.4] * channels, "std": [0.5] * channels}
    plan = {
        "seed": 1,
        "model": {"name": NAME},
        "data": {"augment": [{"normalise": mean}]},
    }
    (folder / "plan.toml").write_text(tomli_w.dumps(plan))
    facts = {"input_shape": [channels, size, size], "classes": classes}
    (folder / "result.json").write_text(json.dumps(facts))
    return str(folder)
