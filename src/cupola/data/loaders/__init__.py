"""Loaders, one short function for each data set; importing this registers them all."""

from cupola.data.loaders import (  # noqa: F401
    bundled,
    cityscapes,
    csv_npz,
    elsewhere,
    folders,
    images,
    leaf,
    shakespeare,
    synthetic,
    tff,
)
