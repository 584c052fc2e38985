"""Synthetic(alpha, beta) of Li et al. (FedProx, 2020), as used by Upcycled-FL.

Device k: u_k ~ N(0, alpha), W_k and b_k ~ N(u_k, 1), B_k ~ N(0, beta), v_k ~ N(B_k, 1), inputs
x ~ N(v_k, diag(j^-1.2)), label argmax(W_k x + b_k); alpha and beta are standard deviations, as in
the common generator. IID: one W and b for all devices, and v = 0. Sizes: int(lognormal(4, 2)) + 50.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from pydantic import NonNegativeFloat, PositiveInt
from scipy.special import ndtri

from cupola.base.randomness import generator, uniforms
from cupola.data.dataset import Dataset, FederatedData, SiteData, Source, joined
from cupola.data.loading import dataset


@dataclass(frozen=True)
class Devices:
    """The population as functions of a device's number, so none need be kept."""

    alpha: float = 1.0
    beta: float = 1.0
    iid: bool = False
    features: int = 60
    classes: int = 10
    seed: int = 0
    max_samples: int | None = None

    def sizes(self, devices: np.ndarray) -> np.ndarray:
        """Rows of each device, held-out ones included: int(lognormal(4, 2)) + 50."""
        uniform = uniforms(self.seed, "synthetic/size", 0, devices.tolist())[:, 0]
        normal = ndtri(np.maximum(uniform, 2.0**-53))
        sizes = np.exp(4.0 + 2.0 * normal).astype(np.int64) + 50
        return sizes if self.max_samples is None else np.minimum(sizes, self.max_samples)

    def training(self, devices: np.ndarray) -> np.ndarray:
        """Training rows of each device, its first 90 % (one at least)."""
        return np.maximum((0.9 * self.sizes(devices)).astype(np.int64), 1)

    def rows(self, k: int) -> Dataset:
        """All rows of device k."""
        rng = generator(self.seed, "synthetic/device", site=k)
        shape = (self.features, self.classes)
        if self.iid:
            shared = generator(self.seed, "synthetic/shared")
            weight, bias = shared.normal(0, 1, shape), shared.normal(0, 1, self.classes)
            mean = np.zeros(self.features)
        else:
            u, b = rng.normal(0, self.alpha), rng.normal(0, self.beta)
            weight, bias = rng.normal(u, 1, shape), rng.normal(u, 1, self.classes)
            mean = rng.normal(b, 1, self.features)
        deviation = np.arange(1, self.features + 1) ** -0.6
        x = rng.normal(mean, deviation, (int(self.sizes(np.array([k]))[0]), self.features))
        y = (x @ weight + bias).argmax(1)
        return Dataset(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y))

    def site(self, k: int) -> SiteData:
        """Device k as a site that holds out its last tenth."""
        data, n = self.rows(k), int(self.training(np.array([k]))[0])
        return SiteData(data.subset(slice(0, n)), test=data.subset(slice(n, None)))


@dataset("synthetic")
def synthetic(
    alpha: NonNegativeFloat = 1.0,
    beta: NonNegativeFloat = 1.0,
    iid: bool = False,
    sites: PositiveInt = 30,
    features: PositiveInt = 60,
    classes: PositiveInt = 10,
    seed: int = 0,
    max_samples: PositiveInt | None = None,
) -> Source:
    """Synthetic(alpha, beta) or, with iid = true, its IID form: devices are natural owners, each
    holding out 10 %. For very many devices use `synthetic_population`, which makes them lazily."""
    devices = Devices(alpha, beta, iid, features, classes, seed, max_samples)
    parts = [devices.rows(k) for k in range(sites)]
    training = devices.training(np.arange(sites))
    held = [np.arange(len(p)) >= n for p, n in zip(parts, training)]
    return Source(
        "synthetic_iid" if iid else f"synthetic({alpha:g},{beta:g})",
        "classification",
        joined(parts),
        classes=classes,
        class_names=tuple(str(c) for c in range(classes)),
        groups=np.repeat(np.arange(sites), [len(p) for p in parts]),
        group_names=tuple(f"device {k}" for k in range(sites)),
        local_test=np.concatenate(held),
    )


def synthetic_population(
    sites: int,
    alpha: float = 1.0,
    beta: float = 1.0,
    iid: bool = False,
    features: int = 60,
    classes: int = 10,
    seed: int = 0,
    max_samples: int | None = None,
) -> FederatedData:
    """The devices of `synthetic`, each made when asked for: a million cost nothing."""
    devices = Devices(alpha, beta, iid, features, classes, seed, max_samples)
    return FederatedData.lazy(
        sites,
        devices.site,
        classes=classes,
        input_shape=(features,),
        class_names=tuple(str(c) for c in range(classes)),
        sizes=devices.training,
        site_name="device {}".format,
        name="synthetic",
    )
