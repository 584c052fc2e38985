"""Trained models to build on: ImageNet classifiers by name, and models that Cupola has trained."""

from cupola.nn.sources.registry import (
    Preprocessing,
    Trained,
    fresh_source,
    kept,
    load,
    names,
    stamp,
    table,
)

__all__ = ["Preprocessing", "Trained", "fresh_source", "kept", "load", "names", "stamp", "table"]
