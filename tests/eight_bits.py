"""Models as torch's dynamic quantisation leaves them: dense layers in 8 bits, packed."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn


def quantised(module: nn.Module, *, rows: bool = False, qconfig: Any = None) -> nn.Module:
    """The module with its `nn.Linear`s quantised, in place; rows: with a scale for each row."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will give it away to torchao
        from torch.ao import quantization as q

        usual = q.per_channel_dynamic_qconfig if rows else q.default_dynamic_qconfig
        spec = {nn.Linear: qconfig or usual}
        return q.quantize_dynamic(module.eval(), spec, inplace=True)


def plain(outputs: int = 3, seed: int = 0) -> nn.Sequential:
    """Tokens (n, 4) below 7 to scores, with two dense layers between."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Embedding(7, 6), nn.Flatten(), nn.Linear(24, 10), nn.Tanh(), nn.Linear(10, 8),
            nn.Tanh(), nn.Linear(8, outputs),
        )  # fmt: skip


def base(outputs: int = 3, seed: int = 0, *, rows: bool = False) -> nn.Sequential:
    """The same, quantised."""
    made = quantised(plain(outputs, seed), rows=rows)
    assert isinstance(made, nn.Sequential)
    return made


def tagger(classes: int, draw: int = 0) -> nn.Module:
    """A model of plans: every token by itself to scores of the next one, quantised."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw)
        made = nn.Sequential(
            nn.Embedding(7, 6), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(),
            nn.Linear(8, classes),
        )  # fmt: skip
    return quantised(made, rows=True)
