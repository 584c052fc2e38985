"""Models, losses and what can be said about them before training."""

from cupola.nn.losses import Loss, NamedLoss, default_loss, find_loss
from cupola.nn.models import build, describe, model, names, options

__all__ = [
    "Loss",
    "NamedLoss",
    "build",
    "default_loss",
    "describe",
    "find_loss",
    "model",
    "names",
    "options",
]
