"""People whose variants are linked, as neighbours on a chromosome are."""

import numpy as np
from cohorts import People
from scipy.special import ndtri

from cupola.association.files import Variants


def linked(seed, n=600, m=300, rho=0.93, missing=0.01, spacing=5000):
    """Two chromosomes; variants 40, 150 and 220 (where there are so many) have effects."""
    rng = np.random.default_rng(seed)

    def haplotypes():
        z = np.empty((m, n))
        z[0] = rng.normal(size=n)
        for i in range(1, m):
            z[i] = rho * z[i - 1] + np.sqrt(1 - rho**2) * rng.normal(size=n)
        return z

    cut = ndtri(rng.uniform(0.15, 0.5, m))[:, None]
    copies = (haplotypes() < cut).astype(int) + (haplotypes() < cut)
    causal = [(i, b) for i, b in ((40, 0.6), (150, 0.5), (220, -0.6)) if i < m]
    y = sum((b * copies[i] for i, b in causal), np.zeros(n))
    y = y - y.mean()
    cc = 1 + (rng.random(n) < 1 / (1 + np.exp(-y))).astype(float)
    qt = (y + rng.normal(size=n)).round(4)
    copies[rng.random((m, n)) < missing] = 3
    bases = rng.permuted(np.tile(list("ACGT"), (m, 1)), axis=1)
    half = m // 2
    place = np.concatenate([np.arange(1, half + 1), np.arange(1, m - half + 1)]) * spacing
    chromosome = np.repeat([1, 2], [half, m - half]).astype(np.uint8)
    names = np.array([f"rs{i}" for i in range(m)])
    listed = Variants(chromosome, place, names, bases[:, 0], bases[:, 1])
    age, dose = rng.normal(50, 10, n).round(1), rng.normal(0, 2, n).round(3)
    return People(copies, listed, rng.integers(1, 3, n), cc, qt, age, dose)
