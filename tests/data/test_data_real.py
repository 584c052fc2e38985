"""Loaders on the real files of CUPOLA_DATA; skipped where they are not."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cupola.data import load, partition
from cupola.data.loaders.synthetic import Devices

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


def entropy(labels: np.ndarray) -> float:
    share = np.bincount(labels) / len(labels)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def decay(devices: list[np.ndarray]) -> float:
    """Exponent with which the variance within a device falls over the features."""
    spread = sum(((d - d.mean(0)) ** 2).sum(0) for d in devices)
    return float(np.polyfit(np.log(np.arange(1, 61)), np.log(spread), 1)[0])


SETTINGS = [("iid", 0.0, 0.0), ("0_0", 0.0, 0.0), ("0p5_0p5", 0.5, 0.5), ("1_1", 1.0, 1.0)]


@pytest.mark.parametrize(("key", "alpha", "beta"), SETTINGS)
def test_synthetic_has_the_published_statistics(
    real: Real, key: str, alpha: float, beta: float
) -> None:
    stored = np.load(real("fedprox_synthetic_test.npz"), allow_pickle=False)
    counts = stored[f"{key}_n"]
    x, y = (np.split(stored[f"{key}_{what}"], np.cumsum(counts)[:-1]) for what in "xy")

    # The published set is one draw of 30 devices: it must lie among many of ours. As many labels of
    # a device as there, since the entropy of a small sample is biased.
    drawn, ours = [], []
    for seed in range(25):
        devices = Devices(alpha, beta, iid=key == "iid", seed=seed, max_samples=int(counts.max()))
        ours = [devices.rows(k) for k in range(30)]
        drawn.append(np.mean([entropy(o.y.numpy()[:n]) for o, n in zip(ours, counts)]))
    published = np.mean([entropy(labels) for labels in y])
    assert abs(published - np.mean(drawn)) < 3.5 * np.std(drawn)

    assert decay([o.x.numpy() for o in ours]) == pytest.approx(-1.2, abs=0.1)
    assert decay(x) == pytest.approx(-1.2, abs=0.1)

    # Variance of a device's mean input: beta^2, and 1/60 from v_k (nothing if IID).
    expected = beta**2 + (0.0 if key == "iid" else 1 / 60)
    for found in ([o.x.numpy().mean() for o in ours], [d.mean() for d in x]):
        assert np.var(found) == pytest.approx(expected, rel=0.8, abs=0.01)

    # A tenth of int(lognormal(4, 2)) + 50 rows.
    assert counts.min() >= 5
    assert np.median(counts) == pytest.approx((np.exp(4) + 50) / 10, rel=0.5)


def test_synthetic_sizes_are_lognormal() -> None:
    sizes = Devices().sizes(np.arange(20_000))
    assert sizes.min() == 50
    large = np.log(sizes[sizes > 150] - 49.5)  # where rounding down matters little
    for quantile, normal in ((0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0)):
        assert np.log(np.quantile(sizes, quantile) - 49.5) == pytest.approx(4 + 2 * normal, abs=0.1)
    assert large.max() > 10


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 1.0)])
def test_synthetic_equals_the_plain_generator(alpha: float, beta: float) -> None:
    """Label entropy of 600 devices, ours and by the generator as its authors wrote it."""
    rng = np.random.default_rng(0)
    plain, ours = [], []
    devices = Devices(alpha, beta, seed=1, max_samples=60)
    for k in range(600):
        u, b = rng.normal(0, alpha), rng.normal(0, beta)
        mean = rng.normal(b, 1, 60)
        weight, bias = rng.normal(u, 1, (60, 10)), rng.normal(u, 1, 10)
        x = mean + rng.normal(size=(50, 60)) * np.arange(1, 61) ** -0.6
        plain.append(entropy((x @ weight + bias).argmax(1)))
        ours.append(entropy(devices.rows(k).y.numpy()[:50]))
    error = np.sqrt((np.var(plain) + np.var(ours)) / 600)
    assert abs(np.mean(plain) - np.mean(ours)) < 4 * error


def test_synthetic_source() -> None:
    source = load("synthetic", alpha=0.5, beta=0.5, sites=7, features=20, max_samples=200)
    assert source.input_shape == (20,)
    data = partition(source, "natural", seed=0)
    assert len(data) == 7
    devices = Devices(0.5, 0.5, features=20, max_samples=200)
    assert data.sizes().tolist() == devices.training(np.arange(7)).tolist()
    assert np.array_equal(data.site(3).test.x, devices.site(3).test.x)
    assert len(set(source.train.y.tolist())) > 1
