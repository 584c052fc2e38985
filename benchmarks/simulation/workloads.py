"""The workloads of the simulation benchmark: data, cohorts, first parameters and the common check.

Needs numpy only, so that every side can import it with its own interpreter. Everything comes from
a fixed seed and is the same for all sides:

    w = WORKLOADS["w1"]              # Workload: sites, per_round, model, batch, rate, ...
    sizes("w1")                      # int64 (sites,): samples of each site
    site("w1", 7)                    # x float32 (n, *input_shape), y int64 (n,)
    cohort("w1", 0)                  # int64 (per_round,): the sites of round 0, ascending
    initial_parameters("w1")         # {"0.weight": float32 array, ...}, in PyTorch's layouts
    check_loss("w1", parameters)     # mean cross-entropy on a fixed sample of the training data

All sides do FedAvg: one epoch of plain SGD at every site of the cohort in batches of `batch` (the
last may be smaller), then the average of the sites' models weighted by their samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

SEED = 20240229
LABEL_NOISE = 0.2  # share of labels drawn at random, so that no loss goes to zero


@dataclass(frozen=True)
class Workload:
    """One federation and how it is trained."""

    name: str
    about: str
    model: Literal["logistic", "mlp", "cnn"]
    sites: int
    per_round: int
    samples: int  # mean number of samples of a site
    spread: Literal["equal", "about", "lognormal"]
    batch: int
    rate: float  # learning rate of SGD at the sites; the coordinator takes the plain average
    warmup: int  # rounds that are trained before the clock starts
    pilot: int  # timed rounds of the first, short run that finds out how fast a side is

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return {"logistic": (60,), "mlp": (784,), "cnn": (1, 28, 28)}[self.model]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return 62 if self.model == "cnn" else 10

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters by name, in order, as PyTorch lays them out."""
        layers: Sequence[tuple[str, tuple[int, ...]]] = {
            "logistic": [("0", (10, 60))],
            "mlp": [("0", (200, 784)), ("2", (10, 200))],
            "cnn": [
                ("0", (32, 1, 5, 5)),
                ("3", (64, 32, 5, 5)),
                ("7", (512, 3136)),
                ("9", (62, 512)),
            ],
        }[self.model]
        out: dict[str, tuple[int, ...]] = {}
        for name, shape in layers:
            out[f"{name}.weight"] = shape
            out[f"{name}.bias"] = shape[:1]
        return out


WORKLOADS = {
    w.name: w
    for w in (
        Workload(
            "w1", "100 sites, 20 a round, logistic 60-10, about 200 samples",
            "logistic", 100, 20, 200, "about", 10, 0.1, 12, 5,
        ),
        Workload(
            "w2", "20 sites, all a round, EMNIST CNN (1.7 M), 100 samples",
            "cnn", 20, 20, 100, "equal", 20, 0.1, 1, 1,
        ),
        Workload(
            "w3", "1000 sites, all a round, MLP 784-200-10, 20 samples",
            "mlp", 1000, 1000, 20, "equal", 10, 0.2, 1, 2,
        ),
        Workload(
            "ragged", "as w1, sizes lognormal",
            "logistic", 100, 20, 200, "lognormal", 10, 0.1, 12, 5,
        ),
        Workload(
            "ragged-mlp", "as ragged, MLP 784-200-10",
            "mlp", 100, 20, 200, "lognormal", 10, 0.1, 2, 4,
        ),
    )
}  # fmt: skip


def _random(name: str, purpose: int, index: int = 0) -> np.random.Generator:
    number = list(WORKLOADS).index(name)
    return np.random.Generator(
        np.random.Philox(np.random.SeedSequence([SEED, number, purpose, index]))
    )


@lru_cache
def sizes(name: str) -> np.ndarray:
    """Number of samples of each site, int64 (sites,)."""
    w, random = WORKLOADS[name], _random(name, 0)
    if w.spread == "equal":
        return np.full(w.sites, w.samples)
    if w.spread == "about":
        return random.integers(w.samples - 20, w.samples + 21, w.sites)
    # a lognormal of sigma 1 has the mean exp(mu + 1/2)
    drawn = random.lognormal(np.log(w.samples) - 0.5, 1.0, w.sites)
    return np.maximum(np.rint(drawn), 10).astype(np.int64)


@lru_cache
def _prototypes(name: str) -> np.ndarray:
    w = WORKLOADS[name]
    random = _random(name, 1)
    if w.model == "cnn":  # blocks of 4 x 4 pixels, because pooling loses anything finer
        blocks = random.standard_normal((w.classes, 1, 7, 7), dtype=np.float32)
        return blocks.repeat(4, 2).repeat(4, 3)
    drawn = random.standard_normal((w.classes, *w.input_shape), dtype=np.float32)
    return drawn * np.float32(0.35 if w.model == "logistic" else 0.15)


def site(name: str, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Data of one site: x float32 (n, *input_shape) and y int64 (n,)."""
    w, random, n = WORKLOADS[name], _random(name, 2, index), int(sizes(name)[index])
    y = random.integers(0, w.classes, n)
    noise = random.standard_normal((n, *w.input_shape), dtype=np.float32)
    x = _prototypes(name)[y] + noise * np.float32(1.0 if w.model == "logistic" else 0.3)
    wrong = random.random(n) < LABEL_NOISE
    return x, np.where(wrong, random.integers(0, w.classes, n), y)


def cohort(name: str, round: int) -> np.ndarray:
    """The sites of a round (counted from 0), ascending, int64 (per_round,)."""
    w = WORKLOADS[name]
    if w.per_round == w.sites:
        return np.arange(w.sites)
    return np.sort(_random(name, 3, round).choice(w.sites, w.per_round, replace=False))


def initial_parameters(name: str) -> dict[str, np.ndarray]:
    """First parameters by name, float32, uniform in +-1/sqrt(fan in) as PyTorch does."""
    random, out, bound = _random(name, 4), {}, 1.0
    for key, shape in WORKLOADS[name].shapes.items():
        if len(shape) > 1:
            bound = float(np.prod(shape[1:])) ** -0.5
        out[key] = random.uniform(-bound, bound, shape).astype(np.float32)
    return out


@lru_cache
def check_sample(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The fixed sample of training data that the common check uses: x, y."""
    w = WORKLOADS[name]
    drawn = _random(name, 5).choice(w.sites, min(w.sites, 20), replace=False)
    parts = [site(name, int(i)) for i in drawn]
    limit = 200 if w.model == "cnn" else 2000
    x = np.concatenate([x for x, _ in parts])
    y = np.concatenate([y for _, y in parts])
    kept = _random(name, 6).permutation(len(y))[:limit]
    return x[kept], y[kept]


def check_loss(name: str, parameters: Mapping[str, np.ndarray]) -> float:
    """Mean cross-entropy of the model on the check sample, by numpy in float64 sums."""
    x, y = check_sample(name)
    p = {k: np.asarray(v, dtype=np.float32) for k, v in parameters.items()}
    expected = WORKLOADS[name].shapes
    found = {k: tuple(v.shape) for k, v in p.items()}
    if found != expected:
        raise ValueError(f"parameters of {name} are {found}, expected {expected}")
    # in parts, because the patches of a convolution are large
    logits = np.concatenate([_forward(name, p, x[i : i + 50]) for i in range(0, len(x), 50)])
    logits = logits.astype(np.float64)
    top = logits.max(1, keepdims=True)
    normaliser = top[:, 0] + np.log(np.exp(logits - top).sum(1))
    return float((normaliser - logits[np.arange(len(y)), y]).mean())


def _forward(name: str, p: Mapping[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    model = WORKLOADS[name].model
    if model == "logistic":
        return _dense(x, p, "0")
    if model == "mlp":
        return _dense(np.maximum(_dense(x, p, "0"), 0), p, "2")
    for layer in ("0", "3"):
        x = _pool(np.maximum(_convolve(x, p, layer), 0))
    return _dense(np.maximum(_dense(x.reshape(len(x), -1), p, "7"), 0), p, "9")


def _dense(x: np.ndarray, p: Mapping[str, np.ndarray], layer: str) -> np.ndarray:
    return x @ p[f"{layer}.weight"].T + p[f"{layer}.bias"]


def _convolve(x: np.ndarray, p: Mapping[str, np.ndarray], layer: str) -> np.ndarray:
    weight = p[f"{layer}.weight"]
    padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, (5, 5), axis=(2, 3))
    out = np.tensordot(patches, weight, axes=([1, 4, 5], [1, 2, 3]))  # (n, h, w, channels)
    return np.moveaxis(out + p[f"{layer}.bias"], 3, 1)


def _pool(x: np.ndarray) -> np.ndarray:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
