"""What a frozen source makes of inputs, computed once and kept: training its map or head then costs
no pass through it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cupola.data import Dataset
from cupola.nn import build
from cupola.nn.reprogram import Adapted, frequent_labels

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
        return features(self._module, data, self._device, self._dtype)


def features(module: Adapted, data: Dataset, device: torch.device, dtype: torch.dtype) -> Tensor:
    """(n, width), on the CPU."""
    found = torch.empty(len(data), module.width, dtype=dtype)
    with torch.no_grad():
        for start in range(0, len(data), AT_A_TIME):
            part = slice(start, start + AT_A_TIME)
            found[part] = module.features(data.inputs(part).to(device, dtype)).cpu()
    return found


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
    guessed = features(module, public, torch.device("cpu"), torch.float32).argmax(1)
    counts = np.zeros((classes, module.width))
    np.add.at(counts, (public.y.numpy(), guessed.numpy()), 1)
    return frequent_labels(counts, options.get("per_class", 1))
