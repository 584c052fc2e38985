"""Loaders on the real files of CUPOLA_DATA; skipped where they are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from cupola.data import load, partition, transforms

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


def test_crops_of_cifar10_at_500_sites(real: Real) -> None:
    real("cifar10_10k.npz")
    source = load("cifar10", variant="10k")
    data = partition(source, {"kind": "dirichlet", "alpha": 1.0, "sites": 500}, 1)
    data = transforms(["flip", {"crop": {"size": 24}}]).apply(data)
    assert set(data.sizes().tolist()) == {20}
    assert data.input_shape == (3, 24, 24)
    site = data.site(7).train
    x = site.inputs()
    assert x.shape == (20, 3, 32, 32)
    assert site.transform(x, torch.Generator().manual_seed(1)).shape == (20, 3, 24, 24)
    test = data.public["test"]
    central = source.test.inputs(slice(0, 5))[..., 4:28, 4:28]
    assert torch.equal(test.inputs(slice(0, 5)), central)


def test_mnist_by_writer(real: Real) -> None:
    real("mnist_by_writer.npz")
    source = load("mnist_by_writer")
    data = partition(source, "natural", seed=0)
    assert (len(data), len(data.public["test"])) == (539, 10_000)
    site = data.site(5)
    assert len(site.test) == pytest.approx(0.2 * (len(site.test) + len(site.train)), abs=1)


def test_mnist_by_writer_as_femnist_in_upcycled_fl(real: Real) -> None:
    """50 devices of several writers each, 5 classes at each, sizes as in the paper's Table 2
    (mean 328, deviation 273)."""
    real("mnist_by_writer.npz")
    source = load("mnist_by_writer")
    spec = {"kind": "natural", "max_sites": 370, "merge": 50, "sigma": 0.8, "k": 5}
    means, deviations = [], []
    for seed in range(3):
        data = partition(source, spec, seed)
        assert (len(data), data.classes) == (50, 10)
        sites = [data.site(i) for i in range(50)]
        assert {len(set(s.train.y.tolist())) for s in sites} == {5}
        assert all(set(s.test.y.tolist()) <= set(s.train.y.tolist()) for s in sites)
        holders = sum(np.bincount(s.train.y, minlength=10) > 0 for s in sites)
        assert holders.tolist() == [25] * 10
        sizes = data.sizes()
        assert min(sizes) >= 20
        means.append(sizes.mean())
        deviations.append(sizes.std())
    assert np.mean(means) == pytest.approx(328, rel=0.05)
    assert np.mean(deviations) == pytest.approx(273, rel=0.25)
    alone = {data.site_name(i).split(" and ")[0] for i in range(50)}
    assert len(alone) == 50


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
    merged = partition(source, {"kind": "natural", "merge": 52}, seed=0)
    assert len(merged) == 52
    assert merged.sizes().sum() == (~source.local_test).sum()
    assert merged.sizes().min() > 150


def test_shakespeare(real: Real) -> None:
    real("shakespeare_roles.npz")
    source = load("shakespeare")
    assert source.input_shape == (80,)
    assert (source.train.x[:, 1:] == source.train.y[:, :-1]).all()
    assert source.group_names[0] == "alls_well_that_ends_well|BERTRAM"
