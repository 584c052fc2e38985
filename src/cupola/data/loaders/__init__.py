"""Loaders, one short function for each data set; importing this registers them all."""

from cupola.data.loaders import (  # noqa: F401
    array_files,
    bundled,
    cityscapes,
    csv_npz,
    elsewhere,
    folders,
    images,
    leaf,
    parquet,
    shakespeare,
    synthetic,
    tff,
)
