"""The workloads' models and data in PyTorch, for the sides that use it."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
import workloads
from torch import Tensor, nn


def build(name: str) -> nn.Sequential:
    """The workload's model with its first parameters; names match `initial_parameters`."""
    kind = workloads.WORKLOADS[name].model
    if kind == "logistic":
        model = nn.Sequential(nn.Linear(60, 10))
    elif kind == "mlp":
        model = nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))
    else:
        model = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 62),
        )  # fmt: skip
    first = {k: torch.from_numpy(v) for k, v in workloads.initial_parameters(name).items()}
    model.load_state_dict(first)
    return model


@cache
def site(name: str, index: int) -> tuple[Tensor, Tensor]:
    """A site's data, made once."""
    x, y = workloads.site(name, index)
    return torch.from_numpy(x), torch.from_numpy(y)


def parameters(model: nn.Module) -> dict[str, np.ndarray]:
    """The model's parameters as arrays."""
    return {k: v.detach().numpy().copy() for k, v in model.named_parameters()}
