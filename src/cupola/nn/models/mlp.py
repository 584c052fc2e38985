"""Linear models and multilayer perceptrons: plain sequences, so that engines can recognise them."""

from __future__ import annotations

import math

from torch import nn

from cupola.nn.activations import Activation
from cupola.nn.activations import activation as layer
from cupola.nn.models.blocks import Shape, Share, Size, head
from cupola.nn.models.building import model


@model("linear", "linear model: logistic regression, or least squares without classes")
def linear(input_shape: Shape, classes: int | None) -> nn.Module:
    """Any input, flattened; logits (n, classes), or (n,) for regression."""
    return nn.Sequential(nn.Flatten(), *head(math.prod(input_shape), classes))


@model("mlp", "multilayer perceptron, 200 hidden units unless told otherwise")
def mlp(
    input_shape: Shape,
    classes: int | None,
    *,
    hidden: list[Size] = [200],  # noqa: B006 (read only)
    activation: Activation = "relu",
    dropout: Share = 0.0,
) -> nn.Module:
    """Any input, flattened; logits (n, classes), or (n,) for regression.

    dropout: share of each hidden layer's outputs, after the activation.
    """
    width = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), *dense(width, hidden, activation, dropout, classes))


def dense(
    width: int, hidden: list[int], activation: Activation, dropout: float, classes: int | None
) -> list[nn.Module]:
    """Hidden layers, each with its activation and dropout (if any), and the head."""
    layers: list[nn.Module] = []
    for units in hidden:
        layers += [nn.Linear(width, units), layer(activation)]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = units
    return [*layers, *head(width, classes)]
