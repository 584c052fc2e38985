"""Models, losses and what can be said about them before training."""

from cupola.nn.conversion import kernel_normalise
from cupola.nn.kernelnorm import (
    KernelNorm1d,
    KernelNorm2d,
    KernelNorm3d,
    KNConv1d,
    KNConv2d,
    KNConv3d,
)
from cupola.nn.losses import Loss, NamedLoss, default_loss, find_loss
from cupola.nn.models.building import build, describe, model, names, options
from cupola.nn.module_properties import Properties, loss_is_batch_dependent, properties

__all__ = [
    "KNConv1d",
    "KNConv2d",
    "KNConv3d",
    "KernelNorm1d",
    "KernelNorm2d",
    "KernelNorm3d",
    "Loss",
    "NamedLoss",
    "Properties",
    "build",
    "default_loss",
    "describe",
    "find_loss",
    "kernel_normalise",
    "loss_is_batch_dependent",
    "model",
    "names",
    "options",
    "properties",
]
