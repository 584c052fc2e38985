"""The accountant of DP-SGD in keywords: epsilon of so many noised steps, and the noise for one.

What is accounted: `steps` sums over Poisson samples, in each of which every example is with
probability `rate`, clipped to norm C, with normal noise of deviation `noise_multiplier` * C. By
privacy loss distributions, where their grid resolves the answer (see `accounting`).
"""

from __future__ import annotations

from cupola.errors import PlanError
from cupola.privacy import accounting
from cupola.privacy.events import Neighbours, SampledGaussian, Sampling, check_number


def epsilon(
    *,
    rate: float,
    noise_multiplier: float,
    steps: int,
    delta: float,
    neighbours: Neighbours = "add-remove",
    sampling: Sampling = "poisson",
) -> float:
    """Epsilon of so many steps of DP-SGD, at this delta. By keyword only: numbers without names
    are easily given in another order.

    >>> round(epsilon(rate=0.01, noise_multiplier=1.0, steps=1000, delta=1e-5), 2)
    1.83
    """
    noise = check_number("noise_multiplier", noise_multiplier, least=0)
    event = SampledGaussian(rate, noise, steps, sampling)
    return accounting.epsilon([event], delta, neighbours=neighbours)


def noise_multiplier(
    *,
    epsilon: float,
    rate: float,
    steps: int,
    delta: float,
    neighbours: Neighbours = "add-remove",
    sampling: Sampling = "poisson",
) -> float:
    """The least noise, to a thousandth and rounded up, with which so many steps keep epsilon.

    >>> round(noise_multiplier(epsilon=1.83, rate=0.01, steps=1000, delta=1e-5), 2)
    1.0
    """
    if check_number("steps", steps, above=0) != int(steps):
        raise PlanError(f"steps = {steps}: whole steps are counted")

    def spent(noise: float) -> list[SampledGaussian]:
        return [SampledGaussian(rate, noise, steps, sampling)]

    return accounting.calibrate(spent, epsilon, delta, neighbours=neighbours)
