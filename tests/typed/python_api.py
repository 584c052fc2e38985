"""What mypy accepts of the functions that people call with objects, and what it refuses.

Nothing here runs: mypy reads it (`[tool.mypy] files`), and complains of an ignore without a cause.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import cupola
from cupola.analysis.plan_file import Objects
from cupola.data import partition_indices
from cupola.privacy import epsilon, make_private, noise_multiplier
from cupola.secure import masked_sum

PLAN: dict[str, Any] = {"name": "typed", "rounds": 1}
ARRAYS = np.zeros((4, 2)), np.zeros(4, int)


def make(width: int = 3) -> nn.Module:
    return nn.Linear(2, width)


def hit(output: Tensor, y: Tensor) -> Tensor:
    return output.argmax(1) == y


def accepted() -> None:
    run: cupola.Run = cupola.run(PLAN, model=nn.Linear(2, 2), data=ARRAYS)
    cupola.run(PLAN, model=nn.Linear, data=[ARRAYS, ARRAYS], loss=nn.CrossEntropyLoss())
    cupola.run(PLAN, model=make, data={"Bern": ARRAYS}, loss=F.cross_entropy, metrics={"hit": hit})
    cupola.run("plan.toml", model="mlp", data="digits", loss=nn.MSELoss)
    objects: Objects = {"model": make, "data": ARRAYS}
    for progress in cupola.iterate(PLAN, **objects):
        done: int = progress.round
        print(done)
    runs: list[cupola.Run] = cupola.resume("runs/typed", **objects)
    text: str = str(cupola.check(PLAN, **objects))
    cupola.Run.open(run.folder, **objects).history.frame()
    print(runs, text, cupola.load(PLAN, **objects))


def refused() -> None:
    cupola.run(PLAN, model=3)  # type: ignore[arg-type]
    cupola.run(PLAN, metrics=[hit])  # type: ignore[arg-type]
    cupola.run(PLAN, modle=make)  # type: ignore[call-arg]
    epsilon(0.01, 1.0, 1000, 1e-5)  # type: ignore[call-arg]


def pieces() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(torch.zeros(4, 2), torch.zeros(4)), batch_size=2)
    private = make_private(model, optimizer, loader, epsilon=3.0, epochs=1)
    spent: float = private.epsilon(1e-5)
    told: float = epsilon(rate=0.1, noise_multiplier=1.0, steps=10, delta=1e-5)
    noise: float = noise_multiplier(rate=0.1, epsilon=1.0, steps=10, delta=1e-5)
    rows: list[np.ndarray] = partition_indices([0, 1], "iid", sites=2)
    print(spent, told, noise, rows, masked_sum([[1], [2], [3]], bound=3))
