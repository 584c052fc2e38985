"""How rows go to sites: the owner of each row, the draws behind it, the share of a site."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from cupola.base.randomness import generator
from cupola.data.dataset import Dataset, SiteData, Source
from cupola.errors import DataError


@dataclass(frozen=True)
class Cut:
    """Owner of each training row (-1: nobody) and, where a partition fixes it, who is held out."""

    owner: np.ndarray  # int64 (rows,)
    sites: int
    held: np.ndarray | None = None  # bool (rows,): the row is test data at its owner
    names: tuple[str, ...] = ()
    types: np.ndarray | None = None  # int (sites,): true distribution of each site


class Assignment:
    """Rows sorted by owner with offsets (CSR): a site is a slice, cut into its parts when asked."""

    def __init__(
        self,
        data: Dataset,
        owner: np.ndarray,
        sites: int,
        held: np.ndarray | None,
        test: float,
        validation: float,
        seed: int,
    ) -> None:
        order = np.argsort(owner, kind="stable")
        unowned = int((owner < 0).sum())
        counts = np.bincount(owner[order[unowned:]], minlength=sites)
        self.order = order[unowned:]
        self.offsets = np.concatenate([[0], np.cumsum(counts)])
        self.data, self.held, self.seed = data, held, seed
        if held is not None:  # training rows before each place in `order`
            self.training = np.concatenate([[0], np.cumsum(~held[self.order])])
        self.test, self.validation = (0.0 if held is not None else test), validation

    def _holdout(self, n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(test, validation) rows out of n; one row at least stays for training."""
        test = np.rint(n * self.test).astype(np.int64)
        test = np.minimum(test, np.maximum(n - 1, 0))
        validation = np.rint(n * self.validation).astype(np.int64)
        return test, np.minimum(validation, np.maximum(n - test - 1, 0))

    def sizes(self, sites: np.ndarray) -> np.ndarray:
        """Training rows of each site."""
        start, stop = self.offsets[sites], self.offsets[sites + 1]
        if self.held is None:
            n = stop - start
        else:
            n = self.training[stop] - self.training[start]
        test, validation = self._holdout(n)
        return n - test - validation

    def site(self, i: int) -> SiteData:
        """What site i holds; its rows keep their order."""
        rows = self.order[self.offsets[i] : self.offsets[i + 1]]
        test = rows[:0]
        if self.held is not None:
            mask = self.held[rows]
            rows, test = rows[~mask], rows[mask]
        n_test, n_validation = (int(v) for v in self._holdout(np.array(len(rows))))
        if n_test + n_validation:
            mixed = generator(self.seed, "partition/holdout", site=i).permutation(rows)
            if n_test:
                test = np.sort(mixed[:n_test])
            validation = np.sort(mixed[n_test : n_test + n_validation])
            rows = np.sort(mixed[n_test + n_validation :])
        else:
            validation = rows[:0]
        subset = self.data.subset
        return SiteData(subset(rows), subset(validation).plain(), subset(test).plain())


def site_sizes(sites: int, asked: int | tuple[int, ...] | None, rows: int) -> np.ndarray:
    """Rows of each site."""
    if asked is None:
        return np.full(sites, rows // sites) + (np.arange(sites) < rows % sites)
    sizes = np.full(sites, asked) if isinstance(asked, int) else np.array(asked, np.int64)
    if len(sizes) != sites:
        raise DataError(f"partition: samples_per_site has {len(sizes)} numbers for sites = {sites}")
    if sizes.sum() > rows:
        raise DataError(
            f"partition: samples_per_site asks for {sizes.sum()} rows in all, but there are {rows}"
        )
    return sizes


def apportion(weights: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to weights that sum to `total` (largest remainder)."""
    exact = weights / weights.sum() * total
    sizes = np.floor(exact).astype(np.int64)
    short = total - int(sizes.sum())
    sizes[np.argsort(sizes - exact, kind="stable")[:short]] += 1
    return sizes


def lognormal_sizes(sites: int, sigma: float, total: int, rng: np.random.Generator) -> np.ndarray:
    """Whole numbers that sum to `total`, lognormal with deviation `sigma`, at least one each if
    there are enough."""
    floor = int(total >= sites)
    return floor + apportion(rng.lognormal(0.0, sigma, sites), total - floor * sites)


def hand_out(sites: int, classes: int, k: int, rng: np.random.Generator) -> np.ndarray:
    """Which k classes each site holds, 0 or 1 (sites, classes): each class is at as many sites as
    any other, give or take one."""
    used = np.zeros(classes, np.int64)
    holds = np.zeros((sites, classes), np.int64)
    for site in range(sites):
        chosen = np.lexsort((rng.random(classes), used))[:k]  # least used, ties at random
        used[chosen] += 1
        holds[site, chosen] = 1
    return holds


def unequal(
    holds: np.ndarray,
    available: np.ndarray,
    sigma: float,
    mean: int | None,
    rng: np.random.Generator,
) -> np.ndarray:
    """Rows (sites, classes) when site sizes are lognormal with deviation `sigma`, the same number
    of each class a site holds, one at least: `mean` rows a site, or as many as there are."""
    weights, used = rng.lognormal(0.0, sigma, len(holds)), holds.sum(0)
    if mean is None:
        loads = weights @ holds
        scale = ((available - used)[used > 0] / loads[used > 0]).min()
    else:
        k = holds.sum(1)
        scale = (mean * len(holds) - k.sum()) / (weights @ k)
    return holds * (1 + np.floor(max(scale, 0.0) * weights).astype(np.int64))[:, None]


def evenly(total: int, parts: int, rng: np.random.Generator) -> np.ndarray:
    """`total` over `parts`, the remainder to parts drawn at random."""
    return rng.permutation(np.full(parts, total // parts) + (np.arange(parts) < total % parts))


def check_enough(counts: np.ndarray, available: np.ndarray, field: str, value: int) -> None:
    """Refuse counts (sites, classes) that ask for more rows of a class than there are."""
    short = np.flatnonzero(counts.sum(0) > available)
    if len(short):
        c = short[0]
        raise DataError(
            f"partition: {field} = {value} asks for {counts.sum(0)[c]} rows of class {c}, "
            f"but there are {available[c]}"
        )


def shuffle(
    total: int, free: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Owners when sites of these sizes draw rows at random."""
    owner = np.full(total, -1, np.int64)
    owner[rng.permutation(free)[: sizes.sum()]] = np.repeat(np.arange(len(sizes)), sizes)
    return owner


def deal(
    total: int,
    free: np.ndarray,
    labels: np.ndarray,
    counts: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Owners when site i draws counts[i, c] rows of class c at random."""
    owner = np.full(total, -1, np.int64)
    for c in range(counts.shape[1]):
        rows = rng.permutation(free[labels == c])
        takers = np.repeat(np.arange(len(counts)), counts[:, c])
        owner[rows[: len(takers)]] = takers
    return owner


def rank_at_owner(owner: np.ndarray, first: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Random rank of each row among its owner's; rows of `first` and the others rank apart."""
    key = owner * 2 + first
    order = np.lexsort((rng.random(len(key)), key))
    starts = np.searchsorted(key[order], key[order], side="left")
    rank = np.empty(len(key), np.int64)
    rank[order] = np.arange(len(key)) - starts
    return rank


def class_number(source: Source, given: int | str, field: str) -> int:
    """Number of a class given by number or name."""
    if isinstance(given, str):
        if given not in source.class_names:
            raise DataError(f"partition: {field}: {source.name} has no class {given!r}")
        return source.class_names.index(given)
    if given >= (source.classes or 0):
        raise DataError(
            f"partition: {field}: class {given}, but {source.name} has {source.classes}"
        )
    return given


def restricted(source: Source, only: Sequence[int | str]) -> Source:
    """The rows of some classes, which become 0, 1, ... in the order given."""
    if source.kind != "classification":
        raise DataError(f"partition: only: {source.name} is {source.kind}, which has no classes")
    chosen = [class_number(source, c, "only") for c in only]
    if len(set(chosen)) < len(chosen):
        raise DataError("partition: only: must name different classes")
    number = torch.full((source.classes or 0,), -1)
    number[chosen] = torch.arange(len(chosen))

    def part(data: Dataset | None) -> Dataset | None:
        if data is None:
            return None
        y = number[data.y]
        return replace(data, x=data.x[y >= 0], y=y[y >= 0])

    train = part(source.train)
    assert train is not None
    kept = (number[source.train.y] >= 0).numpy()
    return replace(
        source,
        train=train,
        test=part(source.test),
        validation=part(source.validation),
        classes=len(chosen),
        class_names=tuple(source.class_names[c] for c in chosen) if source.class_names else (),
        groups=None if source.groups is None else source.groups[kept],
        local_test=None if source.local_test is None else source.local_test[kept],
    )
