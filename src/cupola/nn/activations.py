"""Activation functions by name."""

from __future__ import annotations

from typing import Literal

from torch import nn

from cupola.errors import PlanError

Activation = Literal[
    "relu", "relu6", "leaky_relu", "elu", "gelu", "silu", "mish", "softplus", "tanh", "sigmoid"
]

_LAYERS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


def activation(kind: Activation) -> nn.Module:
    """A new activation layer."""
    if kind not in _LAYERS:
        raise PlanError(
            f"model.activation = {kind!r} is not known; there are: {', '.join(_LAYERS)}"
        )
    return _LAYERS[kind]()
