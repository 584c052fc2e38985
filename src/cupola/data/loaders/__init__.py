"""Loaders, one short function for each data set; importing this registers them all."""

from cupola.data.loaders import (
    bundled,
    cityscapes,
    elsewhere,
    folders,
    images,
    leaf,
    own,
    plays,
    published,
    synthetic,
)

__all__ = [
    "bundled",
    "cityscapes",
    "elsewhere",
    "folders",
    "images",
    "leaf",
    "own",
    "plays",
    "published",
    "synthetic",
]
