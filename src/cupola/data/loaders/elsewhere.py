"""Data that only sites hold: what a plan must say of them so that a model can be made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from cupola.data.dataset import Dataset, Kind, Source
from cupola.data.loading import dataset
from cupola.errors import DataError

_TYPES = {"features": torch.float32, "images": torch.uint8, "tokens": torch.int64}


@dataset("elsewhere")
def elsewhere(
    called: str,
    kind: Kind,
    shape: Sequence[int],
    inputs: Literal["features", "images", "tokens"] = "features",
    class_names: Sequence[str] = (),
    vocabulary: int | None = None,
    public: str | Path | None = None,
) -> Source:
    """Data of real sites, who call them `called`; here are no rows of them.

    shape: of one input (images: channels, height, width). class_names: in the order of the model's
    outputs; sites bring their own labels into it. public: an npz file with x and y that the
    coordinator judges models on.
    """
    if kind != "regression" and not class_names:
        raise DataError("elsewhere: class_names are needed, so that sites agree on their order")
    if inputs == "tokens" and vocabulary is None:
        raise DataError("elsewhere: vocabulary is needed (how many token ids there are)")
    target = torch.float32 if kind == "regression" else torch.int64
    rows = Dataset(torch.zeros((0, *shape), dtype=_TYPES[inputs]), torch.zeros(0, dtype=target))
    test = None
    if public is not None:
        from cupola.data.loaders.csv_npz import npz

        found = npz(public, kind, test=0.0).train
        if found.x.shape[1:] != rows.x.shape[1:]:
            raise DataError(f"{public}: an input has another shape than {list(shape)}")
        test = found
    names = tuple(class_names)
    count = None if kind == "regression" else len(names)
    return Source(called, kind, rows, test, count, names, vocabulary=vocabulary)


def as_agreed(own: Source, agreed: Source) -> Source:
    """A site's data in the form that the plan states: the same kind, shape and order of classes."""
    if own.kind != agreed.kind:
        raise DataError(f"the data are for {own.kind}, the plan is for {agreed.kind}")
    if own.train.x.shape[1:] != agreed.train.x.shape[1:]:
        shapes = [list(s.train.x.shape[1:]) for s in (own, agreed)]
        raise DataError(f"an input has shape {shapes[0]}, in the plan it has {shapes[1]}")
    if own.train.x.dtype != agreed.train.x.dtype:
        raise DataError(f"inputs are {own.train.x.dtype}, the plan's are {agreed.train.x.dtype}")
    facts: dict[str, Any] = {"classes": agreed.classes, "class_names": agreed.class_names}
    if own.kind == "classification":
        facts |= _relabelled(own, agreed.class_names)
    return replace(own, **facts, vocabulary=agreed.vocabulary)


def _relabelled(own: Source, names: tuple[str, ...]) -> dict[str, Any]:
    """Rows with the plan's numbers for their labels."""
    labels = own.class_names or tuple(str(i) for i in range(own.classes or 0))
    strange = [label for label in labels if label not in names]
    if strange:
        raise DataError(f"label {strange[0]!r} is none of the plan's: {', '.join(names)}")
    place = torch.from_numpy(np.array([names.index(label) for label in labels], np.int64))
    parts = {"train": own.train, "test": own.test, "validation": own.validation}
    return {n: None if d is None else replace(d, y=place[d.y]) for n, d in parts.items()}
