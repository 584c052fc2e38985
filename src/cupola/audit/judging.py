"""Tests of hypotheses about noise, sampling and clips: p-values, computed power, and verdicts.

A *statistical* test has a p-value: the probability, if the mechanism does what it promises, of
what was seen or worse. Its level (how small the p-value must be to refute) is its share of the
false-alarm rate of the whole verdict. Its power is the probability that the named fault is seen at
that level, computed from the distribution under the fault. An *exact* test compares a number with
a limit that no draw can break: it has no false alarms, and its power is whether the fault, on the
same inputs, would have been beyond the limit.

Power is computed for a fault in its plainest form: noise of half the deviation, a rate twice as
high, the same noise again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betainc, ndtri
from scipy.stats import binom, chi2, gamma, kstest

if TYPE_CHECKING:
    from cupola.training.workspace import Workspace

HALF = "noise / 2"
TWICE = "rate x 2"
AGAIN = "reused noise"
DRAWN = "division by the drawn batch"
DOUBLED = "clip x 2"
NUMBERS = 20_000  # noise numbers to test, at least
VECTORS = 8  # noise vectors to compare with each other, at least
KEPT = 1 << 16  # numbers of a noise vector that are looked at, of every tensor some
SAME = 1e-3  # relative; what is divided alike agrees to this
MOST_TESTED = 100_000  # numbers in a test of the distribution; more take long and show little


@dataclass
class Places:
    """Which numbers of a noise vector are looked at, tensor by tensor."""

    index: np.ndarray
    blocks: list[tuple[str, slice]]

    @classmethod
    def of(cls, space: Workspace) -> Places:
        sizes = [p.numel() for p in space.params]
        share = max(64, KEPT // len(sizes))
        index, blocks, start, kept = [], [], 0, 0
        for name, size in zip(space.names, sizes):
            own = start + np.arange(0, size, -(-size // share))
            index.append(own)
            blocks.append((name, slice(kept, kept + len(own))))
            start, kept = start + size, kept + len(own)
        return cls(np.concatenate(index), blocks)


@dataclass(frozen=True)
class Test:
    """What one part of a mechanism was tested for.

    part: its name. about: what was looked at. found: what it showed, in words. fault: what its
    power is about. p, power_at: of a statistical test; power_at(level). worst, limit: of an exact
    one; could: how large `worst` would have been with the fault, as far as it is known.
    """

    part: str
    about: str
    found: str
    fault: str
    p: float | None = None
    power_at: Callable[[float], float] | None = None
    worst: float | None = None
    limit: float | None = None
    could: float = float("inf")

    @property
    def exact(self) -> bool:
        return self.p is None

    def judged(self, level: float) -> dict[str, Any]:
        """The test as it is written down. level: of a statistical test."""
        if self.exact:
            assert self.worst is not None
            assert self.limit is not None
            refuted = not self.worst <= self.limit  # what is not a number is beyond
            numbers = {
                "worst": float(self.worst) if np.isfinite(self.worst) else None,
                "limit": float(self.limit),
                "power": float(self.could > self.limit),
            }
        else:
            assert self.p is not None
            assert self.power_at is not None
            refuted = not self.p > level
            p = 0.0 if np.isnan(self.p) else float(self.p)
            numbers = {"p": p, "level": level, "power": float(self.power_at(level))}
        return {
            "part": self.part,
            "about": self.about,
            "found": self.found,
            "fault": self.fault,
            **numbers,
            "verdict": "refuted" if refuted else "consistent",
        }


def judged(tests: Sequence[Test], false_alarm: float) -> tuple[list[dict[str, Any]], float]:
    """All tests with verdicts, and the rate of false alarms of all of them together.

    The statistical tests share the rate equally; by the union bound the sum of their levels
    bounds the probability that any of them refutes a sound mechanism.
    """
    many = sum(not test.exact for test in tests)
    level = false_alarm / max(many, 1)
    return [test.judged(level) for test in tests], level * many


def said_p(p: float) -> str:
    return "p < 1e-300" if p < 1e-300 else f"p = {p:.2g}"


def shared(values: Sequence[float]) -> float:
    """One p-value for the smallest of several (Bonferroni)."""
    return min(1.0, len(values) * min(values))


def two_sided(below: float, above: float) -> float:
    return min(1.0, 2 * min(below, above))


# Noise


def variance_test(z: np.ndarray, part: str, about: str) -> Test:
    """Whether numbers that should be standard normal vary less: chi-square, exact."""
    n, total = z.size, float(np.square(z).sum())
    return Test(
        part,
        f"{about}: {n:,} numbers",
        f"noise variance is {total / n:.4g} of the promised",
        HALF,
        float(chi2.cdf(total, n)),
        lambda level: float(chi2.cdf(4 * chi2.ppf(level, n), n)),
    )


def blocks_test(z: np.ndarray, blocks: Sequence[tuple[str, slice]], about: str) -> Test:
    """The same tensor by tensor, so that a small one without noise is seen. z: (vectors, d)."""
    totals = [(name, np.square(z[:, part])) for name, part in blocks]
    p = [float(chi2.cdf(squares.sum(), squares.size)) for _, squares in totals]
    place = int(np.argmin(p))
    name, squares = totals[place]
    least = min(squares.size for _, squares in totals)
    return Test(
        "noise variance by tensor",
        f"{about}: {len(totals)} tensors",
        f"least in '{name}', where noise variance is {squares.mean():.4g} of the promised",
        f"no noise on one tensor of {least}",
        shared(p),
        lambda level: float(level > 0),  # without noise the sum is 0, whose p-value is 0
    )


def distribution_test(z: np.ndarray, about: str) -> Test:
    """Whether the numbers are normal at all: Kolmogorov and Smirnov."""
    numbers = z.reshape(-1)[:: -(-z.size // MOST_TESTED)]
    found = kstest(numbers, "norm")
    # The distance to noise of half the deviation is 0.165; the empirical one is off by at most
    # e with probability 2 exp(-2 n e^2) (Dvoretzky, Kiefer, Wolfowitz; Massart).
    apart, n = 0.165, len(numbers)

    def power(level: float) -> float:
        needed = np.sqrt(np.log(2 / level) / (2 * n))  # above the exact critical distance
        return float(max(0.0, 1 - 2 * np.exp(-2 * n * max(apart - needed, 0.0) ** 2)))

    return Test(
        "noise distribution",
        f"{about}: {n:,} numbers against the normal distribution",
        f"largest distance {found.statistic:.3g}",
        HALF,
        float(found.pvalue),
        power,
    )


def freshness_test(z: np.ndarray, labels: Sequence[str], part: str = "freshness of noise") -> Test:
    """Whether any two noise vectors are alike: all correlations. z: (vectors, d).

    The squared cosine of independent vectors of uniform direction is Beta(1/2, (d - 1)/2).
    """
    many, d = z.shape
    unit = z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
    cosines = np.where(np.tri(many, dtype=bool), 0.0, unit @ unit.T)
    one, two = divmod(int(np.argmax(np.abs(cosines))), many)
    r, pairs = float(cosines[one, two]), many * (many - 1) // 2
    return Test(
        part,
        f"{many} noise vectors of {d:,} numbers, {pairs} pairs",
        f"largest correlation {r:.3g}, between {labels[one]} and {labels[two]}",
        AGAIN,
        min(1.0, pairs * float(betainc((d - 1) / 2, 0.5, max(0.0, 1 - min(1.0, r * r))))),
        lambda level: float(level > 0),  # the correlation is 1, whose p-value is 0
    )


def noise_tests(z: np.ndarray, blocks: Sequence[tuple[str, slice]], about: str) -> Iterator[Test]:
    """Variance, also by tensor, and distribution."""
    yield variance_test(z, "noise variance", about)
    yield blocks_test(z, blocks, about)
    yield distribution_test(z, about)


def real_noise_tests(z: np.ndarray, who: str, what: str, vectors: int) -> Iterator[Test]:
    """What the operating system's randomness gives, at a real site or coordinator."""
    about = f"{what} with the operating system's randomness"
    yield variance_test(z, f"noise variance, {who}", about)
    labels = [f"draw {i + 1}" for i in range(vectors)]
    yield freshness_test(z[:vectors], labels, f"freshness of noise, {who}")


def independence_test(z: np.ndarray, steps: int, about: str) -> Test:
    """Whether noise that is summed over steps has the variance of fresh noise: chi-square."""
    n, total = z.size, float(np.square(z).sum())

    def power(level: float) -> float:
        high, low = chi2.isf(level / 2, n), chi2.ppf(level / 2, n)
        return float(chi2.sf(high / steps, n) + chi2.cdf(low / steps, n))

    return Test(
        "freshness within a round",
        f"{about}: the sum over {steps} steps, {n:,} numbers",
        f"variance is {total / n:.4g} of that of fresh noise",
        AGAIN,
        two_sided(float(chi2.cdf(total, n)), float(chi2.sf(total, n))),
        power,
    )


def scale_test(z: np.ndarray, sizes: Sequence[float], expected: float) -> Test:
    """Whether every release is divided alike, whatever was drawn. z: (releases, d); sizes: of the
    batches drawn."""
    releases, d = z.shape
    totals = np.square(z).sum(1)
    each = [two_sided(float(chi2.cdf(t, d)), float(chi2.sf(t, d))) for t in totals]
    place = int(np.argmin(each))

    def power(level: float) -> float:
        part = level / (2 * releases)
        low, high = chi2.ppf(part, d), chi2.isf(part, d)
        factor = (np.maximum(np.asarray(sizes, float), 1e-9) / expected) ** 2
        missed = chi2.cdf(high * factor, d) - chi2.cdf(low * factor, d)
        return float(1 - np.prod(missed))

    return Test(
        "division of noise",
        f"noise of {releases} releases with {min(sizes):g} to {max(sizes):g} drawn, "
        f"{expected:g} expected",
        f"with {sizes[place]:g} drawn, its variance is {totals[place] / d:.3g} of the promised",
        DRAWN,
        shared(each),
        power,
    )


def gamma_test(total: float, shape: float, about: str) -> Test:
    """Whether norms that should be Gamma distributed are shorter in all."""
    return Test(
        "noise norm",
        f"{about}: their sum is Gamma({shape:g})",
        f"noise is {total / shape:.4g} times the promised length",
        HALF,
        float(gamma.cdf(total, shape)),
        lambda level: float(gamma.cdf(2 * gamma.ppf(level, shape), shape)),
    )


# Sampling


def _too_often(
    part: str, about: str, found: str, fault: str, hits: int, chances: int, rate: float,
    faulty: float,
) -> Test:  # fmt: skip
    """Whether there are more hits than a rate gives: binomial, exact. faulty: the fault's rate."""
    return Test(
        part,
        about,
        found,
        fault,
        float(binom.sf(hits - 1, chances, rate)),
        lambda level: float(binom.sf(binom.isf(level, chances, rate), chances, faulty)),
    )


def rate_test(hits: int, chances: int, rate: float, part: str, about: str) -> Test:
    """Whether something happens more often than promised."""
    found = f"rate is {hits / chances:.4g}, promised is {rate:.4g}"
    about = f"{about}: {chances:,} chances"
    return _too_often(part, about, found, TWICE, hits, chances, rate, min(1.0, 2 * rate))


def each_rate_test(counts: np.ndarray, chances: int, rate: float) -> Test:
    """The same for the example that was drawn most often."""
    most = int(counts.max())
    return Test(
        "inclusion of each example",
        f"{len(counts):,} examples in {chances:,} batches",
        f"example {int(counts.argmax())} was in {most}; {chances * rate:.3g} are expected",
        "an example in every batch",
        min(1.0, len(counts) * float(binom.sf(most - 1, chances, rate))),
        lambda level: float(len(counts) * rate**chances <= level),
    )


def overlap_test(overlaps: int, chances: int, rate: float, about: str) -> Test:
    """Whether being in one batch says something about the next."""
    chance = rate * rate
    return Test(
        "independence of batches",
        f"{about}: {chances:,} chances to be in both",
        f"rate is {overlaps / chances:.4g}, promised is {chance:.4g}",
        "reused batches",
        two_sided(
            float(binom.cdf(overlaps, chances, chance)),
            float(binom.sf(overlaps - 1, chances, chance)),
        ),
        lambda level: float(binom.sf(binom.isf(level / 2, chances, chance), chances, rate)),
    )


def sizes_test(sizes: np.ndarray, n: int, rate: float, random: np.random.Generator) -> Test:
    """Whether batches' sizes vary as binomial ones do.

    Each size becomes a normal number through its distribution function, at a uniform place within
    its step: exactly normal if the size is binomial, so that their squares are chi-square.
    """
    below = binom.cdf(sizes - 1, n, rate)
    place = below + random.random(len(sizes)) * binom.pmf(sizes, n, rate)
    z = ndtri(np.clip(place, 1e-300, 1 - 1e-16))
    total, many = float(np.square(z).sum()), len(sizes)

    def power(level: float) -> float:
        """Batches of fixed size: numbers within the step of the mean have this much variance."""
        middle = round(n * rate)
        low, width = binom.cdf(middle - 1, n, rate), binom.pmf(middle, n, rate)
        inside = ndtri(np.clip(low + width * (np.arange(256) + 0.5) / 256, 1e-300, 1 - 1e-16))
        mean, spread = float(np.square(inside).mean()), float(np.square(inside).std())
        away = (chi2.ppf(level / 2, many) - many * mean) / max(spread * many**0.5, 1e-9)
        return float(chi2.ppf(level / 2, many) > 0) * (1.0 if away > 8 else 0.0)

    return Test(
        "sizes of batches",
        f"{many:,} batches of {n:,} examples",
        f"variance is {float(np.var(sizes)) / max(n * rate * (1 - rate), 1e-300):.3g} of "
        "the promised",
        "batches of fixed size",
        two_sided(float(chi2.cdf(total, many)), float(chi2.sf(total, many))),
        power,
    )


def count_test(small: int, chances: int, rate: float, under_half: float, about: str) -> Test:
    """Whether noise is too often small. rate: promised; under_half: with half of the noise."""
    found = f"small in {small / chances:.3g} of them, promised is {rate:.3g}"
    about = f"{about}: {chances:,} draws"
    return _too_often("noise on counts", about, found, HALF, small, chances, rate, under_half)


# Exact


def bound_test(
    worst: float,
    limit: float,
    part: str,
    about: str,
    fault: str,
    found: str,
    could: float = float("inf"),
) -> Test:
    """Something that no draw may exceed."""
    return Test(part, about, found, fault, worst=worst, limit=limit, could=could)


def together_test(worst: float, sites: int, unit: str) -> Test:
    """Whether the form for many sites answers what they answer alone."""
    return bound_test(
        worst, 0.01, "sites together", f"{sites} sites at once against one by one",
        "any of these, there only", f"differ by at most {worst:.2g} {unit}",
    )  # fmt: skip
