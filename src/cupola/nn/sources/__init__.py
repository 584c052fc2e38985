"""Trained models to build on: ImageNet classifiers by name, and models that Cupola has trained."""

from cupola.nn.sources.trained import (
    Preprocessing,
    Trained,
    fresh_source,
    load,
    names,
    stamp,
    table,
    weights_file,
)

__all__ = [
    "Preprocessing",
    "Trained",
    "fresh_source",
    "load",
    "names",
    "stamp",
    "table",
    "weights_file",
]
