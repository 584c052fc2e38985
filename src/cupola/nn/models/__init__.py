"""Models by name. `build` makes one; importing this package registers all families."""

from cupola.nn.models.building import build, describe, model, names, options

# isort: split
from cupola.nn.models import (  # noqa: F401
    convnext,
    convolutional,
    densenet,
    huggingface,
    knresnets,
    lstm,
    mlp,
    mobile,
    pretrained,
    residual,
    resnets,
    segmentation,
    transformer,
)

__all__ = ["build", "describe", "model", "names", "options"]
