"""A partition as indices: which rows each site holds, for data that somebody keeps elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from cupola.data.conversion import encoded_targets
from cupola.data.dataset import Dataset, Source
from cupola.data.partition import partition
from cupola.errors import DataError


def partition_indices(
    labels: Any, kind: str = "iid", *, seed: int = 0, groups: Any = None, **options: Any
) -> list[np.ndarray]:
    """Rows of each site, int64 and ascending: what a plan with this partition and seed would give.

    labels: of all rows: integers or words (classes), or floats, for the kinds that need no classes.
    kind, options: as in a plan's `data.partition` ('iid', 'dirichlet', 'classes', 'quantity',
    'natural', 'types', 'pooled'). groups: owner of each row, for 'natural'. No row is at two sites.

    >>> sites = partition_indices([0, 0, 0, 1, 1, 1] * 10, "dirichlet", alpha=0.3, sites=3, seed=0)
    >>> [len(rows) for rows in sites], sorted(np.concatenate(sites)) == list(range(60))
    ([20, 20, 20], True)
    """
    for share in ("test", "validation", "public_validation"):
        if options.get(share):
            raise DataError(
                f"partition_indices gives the rows of each site; {share} = {options[share]} would "
                "hold some out: take them from a site's rows"
            )
    y, words = encoded_targets(labels, "labels")
    regression = y.is_floating_point()
    if not len(y) or y.ndim != 1:
        raise DataError(f"labels have the shape {tuple(y.shape)}; one for each row is needed")
    owners: dict[str, Any] = {}
    if groups is not None:
        names, number = np.unique(np.asarray(groups), return_inverse=True)
        owners = {"groups": number, "group_names": tuple(str(name) for name in names)}
    rows = torch.arange(len(y))[:, None]
    source = Source(
        name="labels",
        kind="regression" if regression else "classification",
        train=Dataset(rows, y),
        classes=None if regression else len(words) or int(y.max()) + 1,
        class_names=words,
        **owners,
    )
    cut = partition(source, {"kind": kind, **options}, seed)
    return [cut.site(i).train.inputs()[:, 0].numpy() for i in range(len(cut))]
