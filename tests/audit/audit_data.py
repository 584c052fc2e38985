"""Data and plans small enough to be repeated thousands of times."""

import numpy as np
import torch
from torch.nn.functional import avg_pool2d

from cupola.data import Dataset, Source, load


def two_digits():
    """The digits 0 and 1 in 4 x 4 pixels: one small binary problem."""
    whole = load("digits")

    def only(data):
        chosen = data.subset((data.y < 2).nonzero().reshape(-1))
        return Dataset(avg_pool2d(chosen.inputs(), 2), chosen.y)

    return Source("two digits", "classification", only(whole.train), only(whole.test), classes=2)


def texts():
    """Sequences of six of twelve tokens, each followed by its successor."""
    start = torch.from_numpy(np.random.default_rng(1).integers(12, size=(80, 1)))
    tokens = (start + torch.arange(7)) % 12
    rows = Dataset(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
    return Source("texts", "language", rows, rows.subset(slice(0, 8)), classes=12, vocabulary=12)


BASE = {
    "rounds": 3,
    "seed": 5,
    "model": "linear",
    "engine": {"workers": 1},
    "evaluation": {"every": 100},
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 20}},
}
UNIFORM = {"epochs": 1, "batch_size": 32, "lr": 0.1, "weighting": "uniform"}
BINARY = {"name": "audit_data:two_digits", "partition": {"kind": "iid", "sites": 6}}
SMALL = {"name": "digits", "partition": {"kind": "iid", "sites": 60}}
PLANS = {
    "dp-sgd": {
        "data": SMALL,
        "local": {"work": "batches", "batches": 1, "batch_size": 18, "lr": 0.1},
        "privacy": {"mechanism": "dp-sgd", "epsilon": 1.4},
    },
    "dp-sgd, replace-one": {
        "data": SMALL,
        "local": {"work": "batches", "batches": 1, "batch_size": 18, "lr": 0.1},
        "privacy": {"mechanism": "dp-sgd", "epsilon": 1.5, "neighbours": "replace-one"},
    },
    "central": {"local": UNIFORM, "privacy": {"mechanism": "central", "epsilon": 2.0}},
    "central, quantile": {
        "local": UNIFORM,
        "privacy": {"mechanism": "central", "epsilon": 2.0, "quantile": 0.5, "counts_noise": 8.0},
    },
    "central, poisson": {
        "local": UNIFORM,
        "participation": {"kind": "poisson", "fraction": 0.5},
        "privacy": {"mechanism": "central", "epsilon": 1.5},
    },
    "dp-ftrl": {"local": UNIFORM, "privacy": {"mechanism": "dp-ftrl", "epsilon": 2.0}},
    "dp-ftrl, rotation": {
        "local": UNIFORM,
        "participation": {"kind": "rotation", "count": 5},
        "privacy": {"mechanism": "dp-ftrl", "epsilon": 2.0, "matrix": "tree"},
    },
    "distributed": {
        "local": UNIFORM,
        "sum": {"kind": "masked", "minimum": 3},
        "privacy": {"mechanism": "distributed", "epsilon": 1.5, "colluders": 1},
    },
    "output": {
        "rounds": 2,
        "data": BINARY,
        "local": {"proximal": 0.5, "weighting": "uniform"},
        "privacy": {
            "mechanism": "output", "epsilon": 2.0, "neighbours": "replace-one", "clip": 10.0,
        },
    },
    "objective": {
        "rounds": 2,
        "data": BINARY,
        "local": {"proximal": 0.5, "weighting": "uniform"},
        "privacy": {"mechanism": "objective", "epsilon": 2.0, "neighbours": "replace-one"},
    },
}  # fmt: skip

#: Small rates, and a model that trains one site at a time.
SAMPLED = {
    "dp-sgd, sampled": {
        "data": {"name": "digits", "partition": {"kind": "iid", "sites": 10}},
        "local": {"epochs": 1, "batch_size": 16, "lr": 0.1},
        "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0},
    },
    "dp-sgd, mlp": {
        "model": {"name": "mlp", "hidden": [16]},
        "data": {"name": "digits", "partition": {"kind": "iid", "sites": 10}},
        "local": {"work": "batches", "batches": 2, "batch_size": 16, "lr": 0.1},
        "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0},
    },
}


def plan(kind):
    return {**BASE, "name": "audited", **(PLANS | SAMPLED)[kind]}
