"""Models by name. `build` makes one; importing this package registers all families."""

from cupola.nn.models.registry import build, describe, model, names, options

from cupola.nn.models import convolutional, dense, recurrent, residual, segmentation  # isort: skip  # noqa: F401

__all__ = ["build", "describe", "model", "names", "options"]
