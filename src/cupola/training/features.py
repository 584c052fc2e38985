"""What a frozen source makes of inputs, computed once and kept: training its map or head then costs
no pass through it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from cupola.data.dataset import Dataset
from cupola.nn.models.building import build
from cupola.nn.regenerate import checksum
from cupola.nn.reprogram import Adapted, frequent_labels, label_counts
from cupola.privacy.persample.batch_independence import LANES, threads_without_rest

KEPT_BYTES = 1 << 30
AT_A_TIME = 64  # always the same, so that the same data give the same bits


class Features:
    """Features of data sets by their inputs; the least recently used go first."""

    def __init__(self, module: Adapted, device: torch.device, dtype: torch.dtype) -> None:
        self._module, self._device, self._dtype = module, device, dtype
        self._kept: OrderedDict[tuple[int, int], tuple[Dataset, Tensor]] = OrderedDict()

    def of(self, data: Dataset) -> Dataset:
        """The same rows with features for inputs."""
        key = (id(data.x), id(data.prepare))
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = (data, self._made(data))  # data: so that its ids stay its own
            while len(self._kept) > 1 and self._bytes() > KEPT_BYTES:
                self._kept.popitem(last=False)
        return replace(data, x=self._kept[key][1], transform=None, prepare=None)

    def _bytes(self) -> int:
        return sum(made.numel() * made.element_size() for _, made in self._kept.values())

    def _made(self, data: Dataset) -> Tensor:
        """(n, width), on the CPU."""
        found = torch.empty(len(data), self._module.width, dtype=self._dtype)
        new: list[tuple[int, bytes, Tensor]] = []
        for start in range(0, len(data), AT_A_TIME):
            for at, x in enumerate(data.inputs(slice(start, start + AT_A_TIME)), start):
                key = self._source + blake2b(x.contiguous().numpy(), digest_size=16).digest()
                row = _seen.get(key)  # once: another thread may forget it
                if row is None:
                    new.append((at, key, x))
                else:
                    found[at] = row
            last = start + AT_A_TIME >= len(data)
            while len(new) >= AT_A_TIME or (new and last):
                now, new = new[:AT_A_TIME], new[AT_A_TIME:]
                # Filled up: a row's bits may depend on how many go through at a time, and a private
                # clip rests on each row having its own bits.
                filled = [x for *_, x in now] + [now[0][2]] * (AT_A_TIME - len(now))
                for (at, key, _), row in zip(now, self._pass(torch.stack(filled))):
                    found[at] = row
                    _seen.keep(key, row)
        return found

    def _pass(self, inputs: Tensor) -> Tensor:
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(self._threads)
            return self._by_source(inputs)
        finally:
            torch.set_num_threads(before)

    def _by_source(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            return self._module.features(inputs.to(self._device, self._dtype)).cpu()

    @cached_property
    def _threads(self) -> int:
        """With which a row's bits do not depend on its place among the others."""
        if torch.get_num_threads() <= AT_A_TIME // LANES:
            return torch.get_num_threads()  # whatever the width, each has whole vectors
        inputs = torch.zeros(AT_A_TIME, *self._module.place.shape)
        return threads_without_rest(lambda: self._by_source(inputs), AT_A_TIME)

    @cached_property
    def _source(self) -> bytes:
        """Stands for all that makes features: the weights, and what comes of a fixed input, which
        tells size, place, padding and precision apart."""
        chance = torch.Generator().manual_seed(0)
        probe = self._by_source(torch.rand(2, *self._module.place.shape, generator=chance))
        kind = f"{self._device} {self._dtype}".encode()
        weights = checksum(self._module.trunk.state_dict().items())
        return blake2b(weights + probe.numpy().tobytes() + kind, digest_size=16).digest()


class _Seen(dict[bytes, Tensor]):
    """Rows of features by source and input, so that all runs of a process (the seeds and settings
    of a table, the trials of a search) pass an input through a source once."""

    held = 0

    def keep(self, key: bytes, row: Tensor) -> None:
        self.held += row.numel() * row.element_size()
        if self.held > KEPT_BYTES:  # rare; what is asked for again is made again
            self.clear()
            self.held = row.numel() * row.element_size()
        self[key] = row.clone()


_seen = _Seen()


def public_labels(
    options: Mapping[str, Any],
    input_shape: Sequence[int],
    classes: int | None,
    seed: int,
    public: Dataset,
) -> list[list[int]]:
    """Source classes for the target's, by how often an untrained reprogrammed source takes public
    examples for them; see `frequent_labels`. options: of the model 'pretrained'."""
    module = build("pretrained", input_shape, classes, seed, **{**options, "adapt": "reprogram"})
    assert isinstance(module, Adapted)
    assert classes is not None
    guessed = Features(module, torch.device("cpu"), torch.float32).of(public).inputs().argmax(1)
    counts = label_counts(public.y, guessed, classes, module.width)
    return frequent_labels(counts, options.get("per_class", 1))
