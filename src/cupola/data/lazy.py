"""Data sets too large to hold: an owner's rows are read when its site is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.base.randomness import generator
from cupola.data.dataset import Dataset, FederatedData, Kind, SiteData
from cupola.errors import DataError

if TYPE_CHECKING:
    from cupola.data.partition import Common


@dataclass(frozen=True, eq=False)
class Owners:
    """A data set by owner, who is the only possible site.

    read: an owner's rows by its number; called anew each time, so nothing is kept.
    sizes: training rows of each owner, which `read` must give.
    """

    name: str
    kind: Kind
    owners: Sequence[str]
    sizes: np.ndarray
    read: Callable[[int], SiteData]
    input_shape: tuple[int, ...]
    classes: int | None
    class_names: tuple[str, ...] = ()
    public: Mapping[str, Dataset] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)  # of tokens, as `FederatedData` has them


def by_owner(source: Owners, spec: Common, seed: int) -> FederatedData:
    """One site for each owner. Of a natural partition: min_samples, max_sites, max_samples (drawn
    at random) and the share for validation; all else would need to see every row."""
    from cupola.data.partition import Natural

    if not isinstance(spec, Natural):
        raise DataError(
            f"partition: {source.name} is read owner by owner, when a site is asked for, so its "
            f"sites are its owners: write partition = {{kind = 'natural'}}"
        )
    taken = ("min_samples", "max_sites", "max_samples", "validation")
    if other := [
        key for key, value in spec if key not in taken and value != getattr(Natural(), key)
    ]:
        raise DataError(
            f"partition: {source.name} is read owner by owner and takes {', '.join(taken)}, "
            f"but not {other[0]}"
        )
    kept = np.flatnonzero(source.sizes >= spec.min_samples)
    if not len(kept):
        raise DataError(f"partition: min_samples = {spec.min_samples} leaves no owner")
    if spec.max_sites is not None and spec.max_sites < len(kept):
        kept = np.sort(generator(seed, "partition").choice(kept, spec.max_sites, replace=False))

    def sizes(sites: np.ndarray) -> np.ndarray:
        n = source.sizes[kept[sites]]
        n = n if spec.max_samples is None else np.minimum(n, spec.max_samples)
        return n - _held(n, spec.validation)

    def site(i: int) -> SiteData:
        read = source.read(int(kept[i]))
        n = len(read.train)
        mixed = np.arange(n)
        if spec.max_samples is not None or spec.validation:
            mixed = generator(seed, "partition/holdout", site=i).permutation(n)[: spec.max_samples]
        held = int(_held(np.array(len(mixed)), spec.validation))
        rows, away = np.sort(mixed[held:]), np.sort(mixed[:held])
        train = read.train if len(rows) == n else read.train.subset(rows)
        return SiteData(train, read.train.subset(away).plain(), read.test)

    return FederatedData(
        len(kept),
        site,
        kind=source.kind,
        classes=source.classes,
        input_shape=source.input_shape,
        class_names=source.class_names,
        public=source.public,
        sizes=sizes,
        site_name=lambda i: source.owners[kept[i]],
        name=source.name,
        **source.facts,
    )


def _held(n: np.ndarray, share: float) -> np.ndarray:
    """Rows of n that are held out; one at least stays."""
    return np.minimum(np.rint(n * share).astype(np.int64), np.maximum(n - 1, 0))
