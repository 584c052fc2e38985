"""Poisson samples of a torch loader's rows, each to be used for one step, and as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from cupola.errors import PlanError
from cupola.nn.module_probe import sandbox
from cupola.privacy.noise import OperatingSystem, Source
from cupola.privacy.secret_draws import secret_draws, secret_generator, set_secret

TRIED = 8  # items on which a loader's own way to make a batch is tried


def require_rows(loader: DataLoader[Any]) -> None:
    """Refuse loaders whose rows cannot be drawn one by one, each with the same probability."""
    if loader.batch_size is None:
        raise PlanError("loader has no batch_size, which says how large samples are to be")
    dataset = loader.dataset
    readable = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if isinstance(dataset, IterableDataset) or not readable:
        raise PlanError("loader reads a stream; Poisson samples need rows by number")
    if not len(dataset):  # type: ignore[arg-type]
        raise PlanError("loader holds no rows")
    if not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        raise PlanError(
            f"loader has a sampler of its own ({type(loader.sampler).__name__}): Poisson samples "
            "are of all rows of its data set; choose rows with torch.utils.data.Subset instead"
        )
    _require_apart(loader)


def _require_apart(loader: DataLoader[Any]) -> None:
    """Refuse a collate_fn that gives an item other numbers in other company (mixed images, texts
    filled up to the longest): a gradient that several items go into is clipped as one item's.

    Tried on a few items, with the same draws: the first of a batch must be as it is alone.
    """
    collate, rows = loader.collate_fn, len(loader.dataset)  # type: ignore[arg-type]
    if collate is default_collate:
        return
    places = np.unique(np.linspace(0, rows - 1, TRIED).astype(int)).tolist()
    items = [loader.dataset[i] for i in places]

    def first(these: list[Any], seed: int) -> list[Tensor]:
        with sandbox(seed):
            leaves = pytree.tree_leaves(collate(these))
        return [leaf[:1] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim()]

    for i, item in enumerate(items):
        alone, among = first([item], i), first([*items[i:], *items[:i]], i)
        if len(alone) != len(among) or not all(map(_alike, alone, among)):
            raise PlanError(
                "the loader's collate_fn gives a sample other numbers among others than alone: it "
                "mixes samples, fills up to the longest, or draws for all at once. Nothing would "
                "bound what one sample adds; fill up to a fixed length, and augment in the data set"
            )


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), equal_nan=True)


class Samples:
    """Poisson samples of row numbers: every row with the same probability, on its own."""

    def __init__(self, n: int, rate: float, steps: int, random: Source) -> None:
        self.n, self.rate, self.steps, self.random = n, rate, steps, random
        self.drawn: deque[int] = deque()

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        self.drawn.clear()
        for _ in range(self.steps):
            rows = np.flatnonzero(self.random.uniforms(self.n) < self.rate).tolist()
            self.drawn.append(len(rows))
            yield rows


class PrivateLoader:
    """Poisson samples of a loader's rows; some batches may be empty, and are steps like others."""

    def __init__(self, loader: DataLoader[Any], samples: Samples) -> None:
        self.dataset, self._samples = loader.dataset, samples
        self._fresh: int | None = None
        secret = isinstance(samples.random, OperatingSystem)
        stored = type(loader.dataset) is TensorDataset and loader.collate_fn is default_collate
        here = secret and not (loader.num_workers or stored)  # where anything is drawn at all
        self._draws = secret_draws if here else nullcontext
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=samples,
            collate_fn=_Collate(loader.dataset, loader.collate_fn),
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=_Secret(loader.worker_init_fn) if secret else loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=secret_generator() if secret else None,  # workers' seeds come from it
        )

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        while True:
            with self._draws():  # augmentations: see `secret_draws`
                batch = next(batches, batches)
            if batch is batches:
                break
            self._fresh = self._samples.drawn.popleft()
            yield batch
        self._fresh = None

    def use(self, n: int) -> None:
        """A batch is used: once, and as it was drawn."""
        fresh, self._fresh = self._fresh, None
        if fresh is None:
            raise PlanError(
                "backward without a new batch of the private loader: what is spent holds for one "
                "step with each of its batches"
            )
        if fresh != n:
            raise PlanError(
                f"the private loader's batch has {fresh} samples, the model was given {n}: what is "
                "spent holds for whole batches of the loader, and no other data"
            )


class _Secret:
    """The loader's own worker_init_fn; afterwards what a worker draws is nobody's to repeat."""

    def __init__(self, own: Callable[[int], None] | None) -> None:
        self.own = own

    def __call__(self, worker: int) -> None:
        if self.own is not None:
            self.own(worker)
        set_secret()


class _Collate:
    """The loader's own way to make a batch of items; of none, an empty one like others."""

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset, self.collate = dataset, collate

    def __call__(self, items: list[Any]) -> Any:
        return self.collate(items) if items else _emptied(self.collate([self.dataset[0]]))


def _emptied(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return batch[:0]
    if isinstance(batch, Mapping):
        return {key: _emptied(part) for key, part in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_make"):
        return type(batch)._make(_emptied(part) for part in batch)
    if isinstance(batch, list | tuple):
        kept = (part for part in batch if isinstance(part, Tensor | Mapping | list | tuple))
        return type(batch)(_emptied(part) for part in kept)
    return batch
