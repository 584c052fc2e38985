"""FedFGD and FedSMB equal centralised training; `check` names whatever breaks that."""

from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from torch import nn

from cupola.data import load, partition
from cupola.engines import InProcess
from cupola.federation import drive
from cupola.nn import find_loss
from cupola.training import (
    Evaluation,
    Local,
    Participation,
    Problem,
    Server,
    Training,
    TrainingHost,
)
from cupola.training.centralised import centralised
from cupola.training.recipes import find_recipe
from cupola.training.utility import check

STABLE_RATE = 0.1  # far below 2 / curvature for both models here, so rounding does not grow
FULL = Local(work="gradient", send="gradients", lr=STABLE_RATE)
MOMENTUM = Server(momentum=0.9, weight_decay=1e-3)
SITES = {
    "iid": {"kind": "iid", "sites": 10},
    "5 classes": {"kind": "classes", "k": 5, "sites": 10},
    "1 class": {"kind": "classes", "k": 1, "sites": 10},
}


def vgg_like(norm=None, dropout=0.0):
    """VGG-6's shape, narrow enough for tests: three pooled convolutions, two more, a linear map."""
    width = [1, 8, 8, 12, 12, 12]
    parts = []
    for i, (a, b) in enumerate(pairwise(width)):
        parts += [nn.Conv2d(a, b, 3, padding=1), *([norm(b)] if norm else []), nn.ReLU()]
        if i < 2:
            parts.append(nn.MaxPool2d(2))
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*parts, *([nn.Dropout(dropout)] if dropout else []), nn.Linear(12, 10))


def logistic():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def seeded(build):
    def make():
        with torch.random.fork_rng():
            torch.manual_seed(1)
            return build()

    return make


def training_of(build, cut, local=FULL, server=MOMENTUM, rounds=100, dtype=torch.float64, **more):
    source = load("digits")
    small = {**cut, "samples_per_site": more.pop("samples", 16)}
    data = partition(source, small, seed=1)
    loss = more.pop("loss", None) or find_loss("cross_entropy")
    problem = Problem(seeded(build), loss, data.kind, data.classes, data.input_shape, "cpu", dtype)
    training = Training(
        problem,
        len(data),
        rounds,
        seed=4,
        local=local,
        server=server,
        evaluation=Evaluation(every=10**6),
        **more,
    )
    return training, data


def federated(training, data, mode="one-by-one"):
    host = TrainingHost(training.problem, data)
    with InProcess(host, seed=training.seed, mode=mode, workers=1) as federation:
        return training.model(drive(training, federation))


def distance(training, data):
    end = federated(training, data)
    *_, (_, central) = centralised(training, data)
    return max(float(np.abs(central[f"model/{n}"] - a).max()) for n, a in end.items())


BUILDS = [logistic, pytest.param(vgg_like, marks=pytest.mark.slow)]


@pytest.mark.parametrize("cut", SITES)
@pytest.mark.parametrize("build", BUILDS)
def test_full_gradients_equal_centralised_training(build, cut):
    training, data = training_of(build, SITES[cut])
    assert distance(training, data) <= 1e-12


@pytest.mark.parametrize("cut", SITES)
@pytest.mark.parametrize("build", BUILDS)
def test_single_mini_batches_equal_centralised_training(build, cut):
    local = Local(work="batches", batches=1, batch_size=4, send="gradients", lr=STABLE_RATE)
    training, data = training_of(build, SITES[cut], local)
    assert distance(training, data) <= 1e-12


@pytest.mark.parametrize("build", [logistic, vgg_like])
def test_float32_stays_within_the_papers_order_of_magnitude(build):
    # 004, Table 1a: mean squared error 1e-15 after 100 rounds (VGG-6).
    training, data = training_of(build, SITES["1 class"], dtype=torch.float32)
    end = federated(training, data)
    *_, (_, central) = centralised(training, data)
    errors = np.concatenate([(central[f"model/{n}"] - a).ravel() for n, a in end.items()])
    assert float(np.mean(errors.astype(np.float64) ** 2)) <= 1e-14


def batch_frequency(output, y):
    """A loss that weighs samples by how often their class occurs in the batch."""
    often = torch.bincount(y, minlength=output.shape[1])[y].to(output)
    return torch.nn.functional.cross_entropy(output, y, reduction="none") / often


BREAKS = {
    "batch norm": ({"build": lambda: vgg_like(nn.BatchNorm2d)}, "batch-independent model"),
    "dropout": ({"build": lambda: vgg_like(dropout=0.5)}, "deterministic model"),
    "adam at the site": (
        {"local": Local(work="gradient", optimizer="adam", lr=0.01), "server": Server()},
        "linear optimizer at the site",
    ),
    "two local steps": (
        {"local": Local(work="batches", batches=2, batch_size=8, send="gradients", lr=0.1)},
        "one local update per round",
    ),
    "half of the sites": (
        {"participation": Participation(kind="fraction", fraction=0.5), "local": Local(lr=0.1)},
        "all sites take part",
    ),
    "batch-dependent loss": ({"loss": batch_frequency}, "batch-independent loss"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_equality_is_found(name):
    settings, condition = BREAKS[name]
    settings = {"build": vgg_like, **settings}
    training, data = training_of(settings.pop("build"), SITES["5 classes"], rounds=3, **settings)
    verdict = check(training, data)
    assert condition in [c.name for c in verdict.failing]
    assert not verdict.preserved
    assert verdict.difference > 1e-6
    assert all(c.reason for c in verdict.failing)


@pytest.mark.parametrize("name", ["fedfgd", "fedsmb"])
def test_check_confirms_by_a_probe(name):
    recipe = find_recipe(name)
    local = Local(**recipe.local, lr=0.1, batch_size=8)
    training, data = training_of(vgg_like, SITES["5 classes"], local, rounds=5)
    verdict = check(training, data)
    assert verdict.preserved, verdict.failing
    assert verdict.difference <= 1e-12


def test_adaptive_server_on_exact_gradients_is_still_centralised():
    server = Server(optimizer="adam", lr=0.01)
    training, data = training_of(logistic, SITES["1 class"], server=server, rounds=20)
    assert check(training, data).preserved
    assert distance(training, data) <= 1e-12


def test_unequal_sites_are_named():
    cut = {"kind": "quantity", "ratios": [4, 2, 1], "sites": 3}
    source = load("digits")
    data = partition(source, cut, seed=1)
    local = Local(work="batches", batches=1, batch_size=8, send="gradients")
    problem = Problem(
        seeded(logistic), find_loss("cross_entropy"), data.kind, 10, data.input_shape, "cpu"
    )
    training = Training(problem, 3, 2, local=local, evaluation=Evaluation(every=9))
    sizes = {len(data.site(i).train) for i in range(3)}
    assert len(sizes) > 1
    failing = check(training, data).failing
    assert [c.name for c in failing] == ["batches are centralised batches"]


def test_twin_records_rounds():
    training, data = training_of(logistic, SITES["iid"], rounds=4)
    records = [record for record, _ in islice(centralised(training, data), 2)]
    assert [r["round"] for r in records] == [1, 2]
