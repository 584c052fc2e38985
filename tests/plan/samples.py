"""Small plans, and code of a user's own, for the tests of plans and runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cupola.data import Dataset, FederatedData, SiteData, Source
from cupola.training import Recipe

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 6,
    "data": {"name": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3, "sites": 4}},
    "model": "linear",
    "local": {"lr": 0.1},
    "engine": {"workers": 1},
}

OWN = Recipe("own", "for tests", "nobody", local={"proximal": 0.7}, server={"momentum": 0.5})
NOT_A_RECIPE = 3


def net(classes: int, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, classes))


def loss(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y, reduction="none")


def rows(n: int, seed: int = 0, classes: int = 3) -> Dataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 5, generator=generator)
    return Dataset(x, torch.randint(0, classes, (n,), generator=generator))


def source(n: int = 40) -> Source:
    return Source("own", "classification", rows(n), rows(20, 1), classes=3)


def sites(sizes: list[int], nan_at: int = -1) -> FederatedData:
    held = [SiteData(rows(n, i)) for i, n in enumerate(sizes)]
    if nan_at >= 0:
        held[nan_at].train.x[1, 2] = float("nan")
    return FederatedData.from_arrays(
        held, classes=3, kind="classification", public={"test": rows(20, 99)}
    )


def of_an_earlier_version(folder: Path) -> None:
    """Take the checksums off a finished run."""
    plan, result = folder / "plan.toml", folder / "result.json"
    plan.write_text(plan.read_text().partition("\n")[2])
    told = json.loads(result.read_text())
    result.write_text(json.dumps({k: told[k] for k in told.keys() - {"checksum", "checksums"}}))


def number() -> int:
    return 3
