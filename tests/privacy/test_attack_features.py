"""Attack: the bits of an example's features depend on its place in the data set."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from cupola.data import Dataset
from cupola.training import features
from cupola.training.features import Features


class Source(nn.Module):
    """A frozen source with an activation whose last numbers come from other instructions."""

    width = 2057

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, self.width)
        self.place = SimpleNamespace(shape=(4,))

    def features(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.trunk(x))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_features_of_an_example_are_its_own(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        source = Source()
        x = torch.randn(64, 4)
        made = []
        for part in (x, x[1:]):
            features._seen.clear()
            own = Features(source, torch.device("cpu"), torch.float32)  # type: ignore[arg-type]
            made.append(own.of(Dataset(part, torch.zeros(len(part)))).x)
    finally:
        torch.set_num_threads(before)
        features._seen.clear()
    assert torch.equal(made[0][1:], made[1])
