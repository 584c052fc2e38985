"""Poisson samples of a torch loader's rows, each to be used for one step, and as a whole."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import DataLoader

from cupola.errors import PlanError
from cupola.privacy.noise import Source


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
        self._loader: DataLoader[Any] = DataLoader(
            loader.dataset,
            batch_sampler=samples,
            collate_fn=_Collate(loader.dataset, loader.collate_fn),
            num_workers=loader.num_workers,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
        )

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
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
