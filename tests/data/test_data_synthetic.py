"""Synthetic(alpha, beta): against the published sets, statistic by statistic, and against itself.

Each statistic is given as a standard score under the generator's own law, so that the bounds are
those of sampling error. That wrong generators are told apart is tested, too.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from cupola.analysis.plan_file import load as load_plan
from cupola.data import load, partition
from cupola.data.loaders.synthetic import Devices
from cupola.training.build import federated_data, problem

Real = Callable[[str], Path]
FILE = "fedprox_synthetic_test.npz"
SETS = {"iid": (0.0, 0.0), "0_0": (0.0, 0.0), "0p5_0p5": (0.5, 0.5), "1_1": (1.0, 1.0)}
FAR = 4.5  # a standard score that chance reaches once in 150,000 times


def published(path: Path, key: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and labels of each device's test part."""
    stored = np.load(path, allow_pickle=False)
    cuts = np.cumsum(stored[f"{key}_n"])[:-1]
    return np.split(stored[f"{key}_x"].astype(float), cuts), np.split(stored[f"{key}_y"], cuts)


def ours(key: str, counts: Sequence[int], seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """As many rows of as many devices of our own."""
    alpha, beta = SETS[key]
    devices = Devices(alpha, beta, iid=key == "iid", seed=seed, max_samples=max(counts))
    rows = [devices.rows(k) for k in range(len(counts))]
    return (
        [r.x.numpy()[:n].astype(float) for r, n in zip(rows, counts)],
        [r.y.numpy()[:n] for r, n in zip(rows, counts)],
    )


def chi2_score(values: float, freedom: int) -> float:
    """Standard score of a chi-squared value."""
    upper = stats.chi2.sf(values, freedom)
    lower = stats.chi2.cdf(values, freedom)
    return float(stats.norm.isf(upper) if upper < lower else stats.norm.ppf(lower))


def scores(devices: list[np.ndarray], key: str) -> dict[str, float]:
    """Standard scores of a set of inputs under Synthetic(., beta), or its IID form."""
    n = np.array([len(d) for d in devices])
    many, width = len(devices), devices[0].shape[1]
    variance = np.arange(1, width + 1) ** -1.2
    within = sum(((d - d.mean(0)) ** 2).sum(0) for d in devices) / variance
    means = np.array([d.mean(0) for d in devices])
    found = {
        "spread within devices": chi2_score(within.sum(), (n.sum() - many) * width),
        "its fall over the features": float(
            max((chi2_score(w, n.sum() - many) for w in within), key=abs)
        ),
    }
    if key == "iid":  # means are zero but for sampling error
        scaled = means**2 * n[:, None] / variance
        return {**found, "means of features": chi2_score(scaled.sum(), scaled.size)}
    beta = SETS[key][1]
    # Of a device's mean over the features: B_k, v_k and its rows, in this order.
    expected = beta**2 + 1 / width + variance.sum() / width**2 / n
    level = means.mean(1)
    noise = 1 + variance[None] / n[:, None]
    residual = ((means - level[:, None]) ** 2 / noise).sum()
    return {
        **found,
        "level of devices": chi2_score((level**2 / expected).sum(), many),
        "features around the level": chi2_score(residual, many * (width - 1)),
    }


def entropy(labels: np.ndarray) -> float:
    share = np.bincount(labels.astype(int)) / len(labels)
    return float(-(share[share > 0] * np.log(share[share > 0])).sum())


def mean_entropy(labels: list[np.ndarray]) -> float:
    return float(np.mean([entropy(y) for y in labels]))


def entropy_score(labels: list[np.ndarray], key: str, sets: int = 25) -> float:
    """Standard score of the devices' mean label entropy among that of our sets. As many labels of a
    device as there, since the entropy of a small sample is biased."""
    counts = [len(y) for y in labels]
    drawn = [mean_entropy(ours(key, counts, seed)[1]) for seed in range(sets)]
    return (mean_entropy(labels) - np.mean(drawn)) / (np.std(drawn, ddof=1) * (1 + 1 / sets) ** 0.5)


@pytest.mark.parametrize("key", SETS)
def test_published_sets_and_ours_follow_one_law(real: Real, key: str) -> None:
    x, y = published(real(FILE), key)
    mine, _ = ours(key, [len(d) for d in x], seed=100)
    for inputs in (x, mine):
        found = scores(inputs, key)
        assert max(map(abs, found.values())) < FAR, found
    # Student's t with 24 degrees, about 1 in 1,000. (0.5, 0.5) and (1, 1) are at 2.6 and 2.4, and
    # as far from the authors' own script (docs/data.md): this is weak evidence for those two.
    assert abs(entropy_score(y, key)) < 3.7


@pytest.mark.parametrize(
    ("key", "taken_for", "statistic"),
    [
        ("iid", "0_0", "features around the level"),
        ("0_0", "iid", "means of features"),
        ("1_1", "0_0", "level of devices"),
        ("0_0", "0p5_0p5", "level of devices"),
        ("0p5_0p5", "0_0", "level of devices"),
    ],
)
def test_other_laws_are_told_apart(real: Real, key: str, taken_for: str, statistic: str) -> None:
    x, _ = published(real(FILE), key)
    assert abs(scores(x, taken_for)[statistic]) > FAR


def test_other_exponents_and_labels_are_told_apart(real: Real) -> None:
    x, y = published(real(FILE), "0_0")
    wrong = [d.mean(0) + (d - d.mean(0)) * np.arange(1, 61) ** 0.02 for d in x]  # -1.16
    assert abs(scores(wrong, "0_0")["its fall over the features"]) > FAR
    assert abs(entropy_score(published(real(FILE), "iid")[1], "0_0")) > FAR
    rng = np.random.default_rng(0)
    mixed = [np.where(rng.random(len(d)) < 0.3, rng.integers(0, 10, len(d)), d) for d in y]
    assert abs(entropy_score(mixed, "0_0")) > FAR


def test_sizes_follow_one_law(real: Real) -> None:
    """Test rows of the 120 published devices and of 20,000 of ours."""
    stored = np.load(real(FILE), allow_pickle=False)
    theirs = np.concatenate([stored[f"{key}_n"] for key in SETS])
    devices = Devices()
    mine = devices.sizes(np.arange(20_000)) - devices.training(np.arange(20_000))
    assert stats.ks_2samp(theirs, mine).pvalue > 1e-3
    assert theirs.min() >= mine.min() == 5
    # A test that can fail: without the 50 rows that everybody has, or with half the deviation.
    z = np.random.default_rng(0).normal(size=20_000)
    for other in (np.exp(4 + 2 * z), np.exp(4 + z) + 50):
        assert stats.ks_2samp(theirs, np.ceil(other.astype(int) / 10)).pvalue < 1e-3


def test_sizes_are_lognormal() -> None:
    sizes = Devices().sizes(np.arange(20_000))
    assert sizes.min() == 50
    large = np.log(sizes[sizes > 150] - 49.5)  # where rounding down matters little
    for quantile, normal in ((0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0)):
        assert np.log(np.quantile(sizes, quantile) - 49.5) == pytest.approx(4 + 2 * normal, abs=0.1)
    assert large.max() > 10


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (1.0, 1.0)])
def test_equals_the_plain_generator(alpha: float, beta: float) -> None:
    """Label entropy of 600 devices, ours and by the generator as its authors wrote it."""
    rng = np.random.default_rng(0)
    plain, mine = [], []
    devices = Devices(alpha, beta, seed=1, max_samples=60)
    for k in range(600):
        u, b = rng.normal(0, alpha), rng.normal(0, beta)
        mean = rng.normal(b, 1, 60)
        weight, bias = rng.normal(u, 1, (60, 10)), rng.normal(u, 1, 10)
        x = mean + rng.normal(size=(50, 60)) * np.arange(1, 61) ** -0.6
        plain.append(entropy((x @ weight + bias).argmax(1)))
        mine.append(entropy(devices.rows(k).y.numpy()[:50]))
    error = np.sqrt((np.var(plain) + np.var(mine)) / 600)
    assert abs(np.mean(plain) - np.mean(mine)) < 4 * error


def test_alpha_moves_no_label() -> None:
    """u_k adds the same to every class, so that only beta makes devices differ."""
    for k in range(10):
        one, other = (Devices(a, 0.5, max_samples=200).rows(k) for a in (0.0, 1.0))
        assert np.array_equal(one.x, other.x)
        assert (one.y == other.y).float().mean() > 0.99  # but for rounding


def test_source() -> None:
    source = load("synthetic", alpha=0.5, beta=0.5, sites=7, features=20, max_samples=200)
    assert source.input_shape == (20,)
    data = partition(source, "natural", seed=0)
    assert len(data) == 7
    devices = Devices(0.5, 0.5, features=20, max_samples=200)
    assert data.sizes().tolist() == devices.training(np.arange(7)).tolist()
    assert np.array_equal(data.site(3).test.x, devices.site(3).test.x)
    assert len(set(source.train.y.tolist())) > 1


@pytest.mark.parametrize(
    "setting", ["iid = true", *(f"alpha = {a}, beta = {a}" for a in (0, 0.5, 1))]
)
def test_sets_of_upcycled_fl_through_a_plan(setting: str) -> None:
    """30 devices, 20 features, 10 classes."""
    plan = load_plan(f"""
        name = "synthetic"
        rounds = 1
        model = "linear"
        data = {{ name = "synthetic", features = 20, sites = 30, {setting}, partition = "natural" }}
    """)
    data = federated_data(plan)
    assert (len(data), data.input_shape, data.classes) == (30, (20,), 10)
    assert sum(p.numel() for p in problem(plan, data).build().parameters()) == 210
    held = [len(data.site(i).test) for i in range(30)]
    assert min(held) >= 5
    assert sum(held) / (sum(held) + data.sizes().sum()) == pytest.approx(0.1, abs=0.01)
