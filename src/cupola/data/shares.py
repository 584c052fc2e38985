"""How rows go to sites: the owner of each row, the draws behind it, the share of a site."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cupola.data.dataset import Dataset, SiteData
from cupola.errors import DataError
from cupola.federation.randomness import generator


@dataclass(frozen=True)
class Cut:
    """Owner of each training row (-1: nobody) and, where a partition fixes it, who is held out."""

    owner: np.ndarray  # int64 (rows,)
    sites: int
    held: np.ndarray | None = None  # bool (rows,): the row is test data at its owner
    names: tuple[str, ...] = ()
    types: np.ndarray | None = None  # int (sites,): true distribution of each site


class Shares:
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
        """Share of site i; its rows keep their order."""
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
