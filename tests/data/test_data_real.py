"""Loaders on the real files of CUPOLA_DATA; skipped where they are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cupola.data import load, partition

Real = Callable[[str], Path]


def test_cifar10_10k(real: Real) -> None:
    real("cifar10_10k.npz")
    source = load("cifar10", variant="10k")
    assert source.input_shape == (3, 32, 32)
    assert np.bincount(source.train.y).tolist() == [1000] * 10
    data = partition(
        source, {"kind": "types", "types": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]}, 0
    )
    assert len(data) == 25
    assert set(data.sizes().tolist()) == {100}


def test_mnist_by_writer(real: Real) -> None:
    real("mnist_by_writer.npz")
    source = load("mnist_by_writer")
    data = partition(source, "natural", seed=0)
    assert (len(data), len(data.public["test"])) == (539, 10_000)
    site = data.site(5)
    assert len(site.test) == pytest.approx(0.2 * (len(site.test) + len(site.train)), abs=1)


def test_pacs(real: Real) -> None:
    pytest.importorskip("PIL")
    real("pacs_128px.npz")
    source = load("pacs", size=32)
    data = partition(source, {"kind": "natural", "test": 0.2}, seed=0)
    assert [data.site_name(i) for i in range(4)] == ["photo", "art_painting", "cartoon", "sketch"]
    assert data.sizes().tolist() == [448] * 4


def test_sent140(real: Real) -> None:
    real("sent140_users.npz")
    source = load("sent140")
    assert (len(source.train), source.vocabulary, source.input_shape) == (16_025, 10_002, (25,))
    data = partition(source, {"kind": "natural", "min_samples": 10}, seed=0)
    assert data.sizes().min() >= 10
    assert (source.train.x > 1).float().mean() > 0.4  # mostly known words


def test_shakespeare(real: Real) -> None:
    real("shakespeare_roles.npz")
    source = load("shakespeare")
    assert source.input_shape == (80,)
    assert (source.train.x[:, 1:] == source.train.y[:, :-1]).all()
    assert source.group_names[0] == "alls_well_that_ends_well|BERTRAM"
