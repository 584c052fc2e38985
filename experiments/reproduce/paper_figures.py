"""Privacy figures that the papers print, recomputed as they did and again rigorously.

`cupola.privacy.published` holds what is found here, as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cupola.privacy import renyi
from cupola.privacy.accounting import epsilon
from cupola.privacy.events import (
    Event,
    Gaussian,
    Pure,
    SampledGaussian,
    check_count,
    check_number,
)
from cupola.privacy.matrix import find
from cupola.privacy.published import Figure

# 000, Reprogrammable-FL

_FINE_ORDERS = np.concatenate([np.linspace(2, 20, 181), np.arange(21.0, 65.0), [128, 256, 512]])
"""Orders in tenths up to 20: with whole ones the first figure would be 1.07 and not 1.04."""


def early_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """Epsilon by the first conversion: divergence + log(1 / delta) / (order - 1)."""
    divergence = steps * renyi.sampled_gaussian(rate, noise, _FINE_ORDERS)
    return float(np.min(divergence + math.log(1 / delta) / (_FINE_ORDERS - 1)))


def _reprogrammable() -> tuple[Figure, ...]:
    sites, batch, noise, delta, rounds = 3, 256, 1.1, 1e-5, 100
    found = []
    for data, printed, total in (
        ("CIFAR-10", 1.04, 50_000),
        ("Oxford pets", 5.29, 3_680),
        ("BloodMNIST", 1.96, 11_959),
    ):
        true = [SampledGaussian(batch * sites / total, noise, rounds)]
        figure = Figure(
            "000",
            f"{data}, {sites} sites, {rounds} rounds",
            "epsilon",
            printed,
            early_epsilon(batch / total, noise, rounds + 1, delta),
            epsilon(true, delta),
            "The paper samples a batch of each site's third and accounts it as one of the whole "
            "data, a third of the true rate, with a round too many and an early conversion.",
            epsilon(true, delta, method="rdp"),
        )
        found.append(figure)
    return tuple(found)


# 001, FedPT with DP-FTRL


def tree_epsilon(noise: float, steps: int, delta: float) -> float:
    """Epsilon of a DP-FTRL tree in which everybody takes part once, by Renyi divergences."""
    event = Gaussian(noise / find("tree").sensitivity(steps))
    return epsilon([event], delta, method="rdp")


def _partial() -> tuple[Figure, ...]:
    steps, delta = 1600, 1e-6
    printed = {1.13: 18.71, 2.33: 7.83, 4.03: 4.19, 6.21: 2.60, 8.83: 1.77}
    return tuple(
        Figure(
            "001",
            f"DP-FTRL, noise {noise:g}, {steps} rounds",
            "epsilon",
            figure,
            tree_epsilon(noise, steps, delta),
            epsilon([Gaussian(noise / find("tree").sensitivity(steps))], delta),
            "Sound if nobody takes part twice, which the coordinator must enforce; the exact "
            "epsilon of this noise is smaller than the paper's bound by Renyi divergences.",
            tree_epsilon(noise, steps, delta),
        )
        for noise, figure in printed.items()
    )


# 003, Upcycled-FL


@dataclass(frozen=True)
class Output:
    """003, theorem 5.2: models clipped to norm `clip`, Gaussian noise of deviation `noise` on each.

    releases: odd rounds, M. samples: of the site. lipschitz and strength (of the proximal term, mu)
    if the loss is convex and minimised exactly: then one record moves the minimiser less.
    """

    releases: int
    clip: float
    noise: float
    samples: int
    delta: float
    lipschitz: float | None = None
    strength: float | None = None

    def __post_init__(self) -> None:
        check_count("releases", self.releases, least=1)
        check_count("samples", self.samples, least=1)
        check_number("clip", self.clip, above=0)
        check_number("noise", self.noise, above=0)
        check_number("delta", self.delta, above=0, below=1)

    @property
    def _moment(self) -> float:
        return self.releases * (self.clip / (self.noise * self.samples)) ** 2 / 2

    def as_printed(self) -> float:
        """The formula of theorem 5.2 as it stands."""
        return 2 * math.sqrt(self._moment * math.log(1 / self.delta) + self._moment)

    def bracketed(self) -> float:
        """What its own proof gives: the last term belongs outside the root, not doubled."""
        return self._moment + 2 * math.sqrt(self._moment * math.log(1 / self.delta))

    def sensitivity(self) -> float:
        """By replacement: a clipped minimiser is no average, so one record may turn it around."""
        if self.lipschitz is None or self.strength is None:
            return 2 * self.clip
        return min(2 * self.clip, 2 * self.lipschitz / (self.samples * self.strength))

    def events(self) -> tuple[Event, ...]:
        return (Gaussian(self.noise / self.sensitivity(), self.releases, "replace-one"),)

    def rigorous(self) -> float:
        return epsilon(self.events(), self.delta, neighbours="replace-one")


@dataclass(frozen=True)
class Objective:
    """003, theorem 5.3: a random linear term with density exp(-alpha |n|) in the objective.

    gradient, curvature: bounds of the loss's first and second derivative (logistic: 1 and 1/4) for
    features of norm 1. classes: above 2 the theorem needs one problem per class (one against rest).
    """

    releases: int
    alpha: float
    samples: int
    strength: float
    gradient: float = 1.0
    curvature: float = 0.25
    classes: int = 2

    def __post_init__(self) -> None:
        check_count("releases", self.releases, least=1)
        check_count("samples", self.samples, least=1)
        check_count("classes", self.classes, least=2)
        check_number("alpha", self.alpha, above=0)
        check_number("strength", self.strength, above=0)

    def holds(self) -> bool:
        """The theorem's condition on the curvature."""
        return self.curvature <= 0.5 * self.samples * self.strength

    def as_printed(self) -> float:
        """The theorem's sum, which runs from 0 to M."""
        one = 2 * self.alpha * self.gradient * self.strength + 2.8 * self.curvature
        return (self.releases + 1) * one / (self.samples * self.strength)

    def events(self) -> tuple[Pure, ...]:
        # The replaced record's term is the only one that can make the Jacobian's determinant
        # smaller: a rank one part of at most curvature / samples on top of at least `strength`.
        shift = math.log1p(self.curvature / (self.samples * self.strength))
        one = 2 * self.alpha * self.gradient / self.samples + shift
        problems = 1 if self.classes == 2 else self.classes
        return (Pure(one, self.releases * problems, "replace-one"),)

    def rigorous(self) -> float:
        """Pure epsilon of all releases; the minimiser must be exact, or its error accounted for."""
        return math.fsum(event.count * event.epsilon for event in self.events())


def _upcycled() -> tuple[Figure, ...]:
    # The paper prints no epsilon beside its noise. We take its strength (mu = 0.1), delta, the mean
    # size of Synthetic(iid), 40 odd rounds of 80, and the noise for which its formula says 1.
    releases, samples, delta, strength, clip = 40, 224, 1e-3, 0.1, 1.0
    unit = Output(releases, clip, clip, samples, delta).as_printed() * clip
    convex = Output(releases, clip, unit, samples, delta, lipschitz=1.0, strength=strength)
    general = Output(releases, clip, unit, samples, delta)
    reason = (
        "The theorem takes a clipped minimiser for an average of clipped terms, so that one record "
        "would move it by clip/n; it can move it by "
    )
    outputs = tuple(
        Figure(
            "003",
            f"output perturbation, {kind}",
            "epsilon",
            None,
            one.as_printed(),
            one.rigorous(),
            reason + moves + ". The formula also has a bracket in the wrong place.",
        )
        for kind, one, moves in (
            ("any model", general, "2 clip"),
            ("convex and solved exactly", convex, "min(2 clip, 2 G/(n mu))"),
        )
    )
    objectives = tuple(
        Figure(
            "003",
            f"objective perturbation, {classes} classes",
            "epsilon",
            None,
            one.as_printed(),
            one.rigorous(),
            reason,
        )
        for classes, reason in (
            (2, "Sound for exact minimisers; it counts a release and a constant too many."),
            (10, "The theorem does not cover a softmax; one problem per class composes ten times."),
        )
        for one in [Objective(releases, 1.0, samples, strength, classes=classes)]
    )
    return (*outputs, *objectives)


# 004, appendix B


_LOW_ORDERS = np.arange(1.5, 8.01, 0.1)
"""Where the best order lies for epsilon 7 and 8; the others only take time."""


def _noise_by_rdp(rate: float, steps: float, target: float, delta: float) -> float:
    """The noise at which so many steps (a fraction, if need be) give this epsilon."""
    from dp_accounting.rdp import compute_epsilon

    def gap(noise: float) -> float:
        divergence = steps * renyi.sampled_gaussian(rate, noise, _LOW_ORDERS)
        return compute_epsilon(_LOW_ORDERS, divergence, delta)[0] - target

    return _root(gap)


def _noise_by_loss(rate: float, steps: int, target: float, delta: float) -> float:
    def gap(noise: float) -> float:
        return epsilon([SampledGaussian(rate, noise, steps)], delta, method="pld") - target

    return _root(gap)


def _root(gap: Callable[[float], float]) -> float:
    from scipy.optimize import brentq

    return float(brentq(gap, 2, 12, xtol=1e-3))


def _cup() -> tuple[Figure, ...]:
    samples, rounds, delta = 5000, 100, 1e-5
    found = []
    for model, batch, target in (("GroupNorm", 2048, 8.0), ("KernelNorm", 3072, 7.0)):
        rate, whole = batch / samples, math.ceil(samples / batch)
        figure = Figure(
            "004",
            f"{model}, batch {batch}, epsilon {target:g}, {rounds} rounds",
            "noise",
            None,
            _noise_by_rdp(rate, rounds * samples / batch, target, delta),
            _noise_by_loss(rate, rounds * whole, target, delta),
            f"Counted in epochs a round has {samples / batch:.2f} steps; it makes {whole} whole "
            "ones, and Cupola counts the steps it makes.",
            _noise_by_rdp(rate, rounds * whole, target, delta),
        )
        found.append(figure)
    return tuple(found)


_PAPERS: dict[str, Callable[[], tuple[Figure, ...]]] = {
    "000": _reprogrammable,
    "001": _partial,
    "003": _upcycled,
    "004": _cup,
}


@lru_cache(maxsize=8)
def recomputed(paper: str) -> tuple[Figure, ...]:
    """The figures of one paper, both ways; some seconds for 004 the first time."""
    return _PAPERS[paper]()
