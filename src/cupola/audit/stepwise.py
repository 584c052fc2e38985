"""The parts of dp-sgd, tested on the run's own code: sampling, clip, noise, division.

Releases are made by the site's own task with the run's settings, one step at a time. The same
release with noise 0 and the same seed differs by the noise alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from cupola.audit import crafted, judging
from cupola.audit.judging import NUMBERS, SAME, VECTORS, Places, Test
from cupola.audit.replayed_run import (
    ReplayedSite,
    Subject,
    as_tensor,
    direction,
    flat,
    together_less_alone,
)
from cupola.base.randomness import derive, generator
from cupola.data.dataset import SiteData
from cupola.federation.message import Question
from cupola.federation.site import SiteContext
from cupola.privacy.events import SampledGaussian
from cupola.privacy.persample.rules import ROUNDING
from cupola.training import batches
from cupola.training.choices import Local
from cupola.training.local import augmentation, train, turn_of
from cupola.training.mechanisms import dp_sgd, mechanism_for

DRAWS = 2_000_000  # chances to be drawn
LEAST_BATCHES, MOST_BATCHES = 40, 4000
CASES = 208  # crafted clips; for large models an eighth
LARGE = 300_000  # parameters
COSTLY = 10**8  # examples of a batch times parameters: fewer releases then


class Site(ReplayedSite):
    """What a site of the run promises for one step."""

    def __init__(self, subject: Subject, seed: int) -> None:
        super().__init__(subject, seed)
        self.privacy, self.space = subject.privacy, subject.space
        question = subject.question(1)
        self.local = Local.model_validate(question.options["local"])
        self.places = Places.of(self.space)
        context = subject.context(self.index, self.data, 0)
        assert train.charge is not None
        charge = train.charge(context, question)
        assert charge is not None
        (event,) = charge.events
        assert isinstance(event, SampledGaussian)
        self.promise = event
        self.expected = self.rate(self.n) * self.n

    def rate(self, n: int) -> float:
        """Of n examples, as promised: the audit's own arithmetic."""
        return 1.0 if self.local.work == "gradient" else min(1.0, self.local.batch_size / n)

    @cached_property
    def deviation(self) -> float:
        """Of the noise in one released mean gradient, as promised."""
        clip = self.privacy.clip * (1 + ROUNDING)
        return self.promise.noise * clip / self.expected

    def question(self, round: int, steps: int = 1, noise: bool = True) -> Question:
        """The run's question of a round, for so many steps at a model that stays where it is."""
        found = self.subject.question(1 + (round - 1) % self.subject.rounds)
        local = {
            "work": "gradient" if self.local.work == "gradient" else "batches",
            "batches": steps,
            "batch_size": self.local.batch_size,
            "send": "gradients",
            "weighting": "uniform",
        }
        privacy = dict(found.options["privacy"])
        if not noise:
            privacy["noise"] = 0.0
        options = {**found.options, "local": local, "privacy": privacy, "lr": 0.0}
        return replace(found, options=options, round=round)

    def noise(self, seed: int, round: int, steps: int = 1, site: int | None = None) -> np.ndarray:
        """The noise in an answer of the task, in promised deviations of one step."""
        found = [
            flat(train(self.context(seed, site=site), self.question(round, steps, on)).arrays)
            for on in (True, False)
        ]
        return (found[0] - found[1])[self.places.index] / self.deviation

    def gradient(
        self, context: SiteContext, *, noise: bool, arrays: Any = None, round: int = 1
    ) -> dp_sgd.PrivateGradient:
        """What the task calls in every step."""
        question = self.question(round, 1, noise)
        if arrays is not None:
            question = replace(question, arrays=arrays)
        self.space.load(question.arrays)
        return dp_sgd.PrivateGradient(turn_of(context, question), mechanism_for(question).privacy)

    def released(self, gradient: dp_sgd.PrivateGradient, index: np.ndarray,
                 context: SiteContext) -> np.ndarray:  # fmt: skip
        """One step's mean gradient over a batch; random layers draw the same every time."""
        augment = augmentation(context, self.question(1), self.privacy)
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            parts = gradient(np.asarray(index, np.int64), augment)
        return torch.cat([p.reshape(-1) for p in parts]).double().cpu().numpy()


def tests(subject: Subject, seed: int) -> Iterator[Test]:
    """Every part of a dp-sgd run."""
    site = Site(subject, seed)
    yield from _noise(site)
    yield from _system_noise(site)
    yield from _sampling(site)
    yield _steps(site)
    yield _clip(site)
    yield _company(site)
    yield _division(site)
    yield from _together(site)


# Noise


def _noise(site: Site) -> Iterator[Test]:
    d = len(site.places.index)
    costly = site.expected * site.space.flat.numel() > COSTLY
    rounds = 2 if costly else max(VECTORS, -(-NUMBERS // d))
    z = [site.noise(site.seed, round) for round in range(1, rounds + 1)]
    labels = [f"round {round}" for round in range(1, rounds + 1)]
    sizes = [len(_batches(site, site.seed, round)[0]) for round in range(1, rounds + 1)]
    about = f"releases of the task at site {site.index}"
    others = [i for i in range(len(site.subject.host)) if i != site.index
              and len(site.subject.host.data(i).train)][:1]  # fmt: skip
    yield from judging.noise_tests(np.stack(z), site.places.blocks, about)
    if site.promise.rate < 1:
        yield judging.scale_test(np.stack(z), sizes, site.expected)
    fresh, names = z[:VECTORS], labels[:VECTORS]
    for other in others:
        # The same data under another number: another site's noise must differ by its number alone.
        fresh.append(site.noise(site.seed, 1, site=other))
        names.append(f"round 1 of site {other}")
    fresh.append(site.noise(derive(site.seed, "another run"), 1))
    names.append("round 1 of another run")
    yield judging.freshness_test(np.stack(fresh), names)
    steps = 2 if costly else min(max(site.promise.count, 2), 4)
    if site.local.work != "gradient":
        rounds = 1 if costly else max(2, rounds // 4)
        summed = [site.noise(site.seed, round, steps) for round in range(1, rounds + 1)]
        yield judging.independence_test(np.stack(summed) / steps**0.5, steps, about)


def _system_noise(site: Site) -> Iterator[Test]:
    """What a real site draws: the same step on an empty batch, which is noise alone."""
    context = site.context(0, real=True)
    many = max(VECTORS, -(-NUMBERS // len(site.places.index)))
    nobody = np.empty(0, np.int64)
    z = []
    for number in range(many):
        # Every other one by a new start of the site, the others by the next step of the same.
        if number % 2 == 0:
            step = site.gradient(context, noise=True)
        z.append(site.released(step, nobody, context)[site.places.index] / site.deviation)
    yield judging.variance_test(
        np.stack(z), "noise variance, real site", "steps with the operating system's randomness"
    )
    labels = [f"start {i // 2 + 1}, step {i % 2 + 1}" for i in range(many)]
    yield judging.freshness_test(
        np.stack(z[: 2 * VECTORS]), labels[: 2 * VECTORS], "freshness of noise, real site"
    )


# Sampling


def _batches(site: Site, seed: int, round: int, real: bool = False, own: bool = False) -> list:
    question = site.subject.question(1) if own else site.question(round)
    question = replace(question, round=round)
    local = Local.model_validate(question.options["local"])
    context = site.context(seed, real=real)
    return batches.share_out([context], question, local)[0].batches


def _steps(site: Site) -> Test:
    """How many noised steps an answer holds."""
    made = len(_batches(site, site.seed, 1, own=True))
    return judging.bound_test(
        made, site.promise.count, "steps", "noised steps in one answer", "one step more",
        f"{made}; {site.promise.count} are promised", could=site.promise.count + 1,
    )  # fmt: skip


def _sampling(site: Site) -> Iterator[Test]:
    n, rate = site.n, site.promise.rate
    if rate >= 1:
        return
    steps = max(site.promise.count, 1)
    many = int(np.clip(DRAWS // n, LEAST_BATCHES, MOST_BATCHES))
    rounds = max(2, -(-many // steps))
    rounds += rounds % 2
    inside = np.zeros((rounds, min(steps, many), n), bool)
    for round in range(rounds):
        drawn = _batches(site, site.seed, round + 1, own=True)
        for step, batch in enumerate(drawn[: inside.shape[1]]):
            inside[round, step, batch] = True
    whole = inside.reshape(-1, n)
    about = f"examples of site {site.index} in {len(whole):,} batches"
    yield judging.rate_test(int(whole.sum()), whole.size, rate, "inclusion rate", about)
    yield judging.each_rate_test(whole.sum(0), len(whole), rate)
    random = generator(site.seed, "audit sizes")
    yield judging.sizes_test(whole.sum(1), n, rate, random)
    both = int((inside[0::2] & inside[1::2]).sum())
    yield judging.overlap_test(both, inside[0::2].size, rate, "batches of successive rounds")
    if inside.shape[1] > 1:
        even = inside[:, : inside.shape[1] // 2 * 2]
        pairs = even[:, 0::2] & even[:, 1::2]
        yield judging.overlap_test(int(pairs.sum()), pairs.size, rate, "batches of one round")
    drawn = [b for round in range(rounds) for b in _batches(site, 0, round + 1, real=True)]
    yield judging.rate_test(
        sum(len(b) for b in drawn), len(drawn) * n, rate, "inclusion rate, real site",
        "examples drawn with the operating system's randomness",
    )  # fmt: skip


# Clip


def _clip(site: Site) -> Test:
    """The sum without noise, with and without one example, for crafted inputs and weights."""
    worst, where, longest = 0.0, "", 0.0
    large = site.space.flat.numel() > LARGE
    # Where layers or augmentations draw, leaving one out gives the others other draws: examples
    # alone then. The draws are secret. Copies are crafted, too, and draw nothing.
    alone = site.space.serial or not isinstance(site.privacy.augmentations, int)
    for number in range(CASES // 8 if large else CASES):
        case = _Case.number(site, number, 1 if alone else 8 if large else 70)
        moved = case.moved(site)
        longest = max(longest, case.length(site) if number < len(crafted.WEIGHTS) else 0.0)
        if not moved <= worst:
            worst, where = moved, case.name
    # Beside the documented slack, the answer is cast to the model's type.
    limit = 1 + ROUNDING + 70 * 2.0**-23
    return judging.bound_test(
        worst, limit, "clip", f"one example's part in {number + 1} crafted sums without noise",
        judging.DOUBLED, f"at most {worst:.4g} clips ({where})", could=min(2.0, longest),
    )  # fmt: skip


@dataclass(frozen=True)
class _Case:
    name: str
    data: SiteData
    arrays: Any
    out: int

    @classmethod
    def number(cls, site: Site, number: int, most: int) -> _Case:
        kinds = crafted.INPUTS if site.space.problem.tokens is None else crafted.TOKENS
        size = min(crafted.SIZES[number % len(crafted.SIZES)], most)
        kind = kinds[number % len(kinds)]
        how = crafted.WEIGHTS[(number + number // len(kinds)) % len(crafted.WEIGHTS)]
        seed = derive(site.seed, "clip", number)
        model = site.subject.models[0 if how == "first" else -1]
        rows = crafted.inputs(site.space.problem, site.data.train, kind, size, seed)
        if site.privacy.augmentations != 1:
            rows = replace(rows, transform=crafted.opposite)
        name = f"{kind} inputs, {how} weights, batch of {size}"
        out = 0 if kind == "not finite" else seed % size
        return cls(name, SiteData(rows), crafted.weights(model, how, seed), out)

    def moved(self, site: Site) -> float:
        """How far one example moves the sum, in clips; inf if it is not finite."""
        context = site.context(0, data=self.data)
        n = len(self.data.train)
        everybody = np.arange(n)
        found = []
        for index in (everybody, everybody[everybody != self.out]):
            step = site.gradient(context, noise=False, arrays=self.arrays)
            found.append(site.released(step, index, context))
        far = float(np.linalg.norm(found[0] - found[1])) * site.rate(n) * n / site.privacy.clip
        return far if np.isfinite(far) else float("inf")

    def length(self, site: Site) -> float:
        """The longest gradient before clipping, in clips."""
        context = site.context(0, data=self.data)
        step = site.gradient(context, noise=False, arrays=self.arrays)
        x, y = site.space.batch(self.data.train, slice(None))
        norms = step.engine.clipped_sum(x, y, site.privacy.clip).norms
        norms = norms[torch.isfinite(norms)]
        return float(norms.max()) / site.privacy.clip if len(norms) else 0.0


def _company(site: Site) -> Test:
    """Whether an example's bits depend on its place in a batch or on its neighbours there."""
    rows = replace(site.data.train, transform=None)
    x, y = site.space.batch(rows, slice(0, 1))
    copies = len(dp_sgd.copies_of(site.data.train, site.privacy))
    form, problem = dp_sgd.per_sample(site.space).self_test(
        x, y, multiplicity=copies, expected=site.expected
    )
    how = "one by one" if form.samples == 1 else f"{form.samples} at a time"
    return judging.bound_test(
        float(problem is not None), 0.0, "company of an example",
        f"bits of random examples, alone and among others, {how}",
        "a library whose bits depend on the place", problem or "the same bits in every place",
        could=1.0,
    )  # fmt: skip


# Division


def _division(site: Site) -> Test:
    """Whether a sum of gradients is divided by the same number, however many were drawn: a canary
    of known length alone, and in the company of others."""
    across = direction(site.seed, "division", site.space.flat.numel())
    loud = as_tensor(100.0 * site.privacy.clip * across, site.space)
    context = site.context(0)
    worst, said = 0.0, ""
    for others in (0, *(() if site.space.serial else (1, min(site.n - 1, 24)))):
        index = np.arange(others + 1)
        found = []
        for mark in ({1: loud}, {}):
            context.canary = dp_sgd.Canary(0, mark)
            found.append(site.released(site.gradient(context, noise=False), index, context))
        part = float((found[0] - found[1]) @ across) * site.expected / site.privacy.clip
        if not abs(part - 1) <= worst:
            worst, said = abs(part - 1), f"{part:.4g} of its share in a batch of {others + 1}"
    return judging.bound_test(
        worst, SAME, "division of the sum", f"an example's part, {site.expected:g} expected",
        judging.DRAWN, said, could=abs(site.expected - 1),
    )  # fmt: skip


# Many sites at once


def _together(site: Site) -> Iterator[Test]:
    """The form for many sites must answer what they answer alone, noise and clip included."""
    numbers = site.subject.some_sites()
    loud = crafted.inputs(site.space.problem, site.data.train, "huge", site.n, site.seed)
    worst = 0.0
    for data in (None, SiteData(loud)):
        held = [site.subject.host.data(i) if data is None else data for i in numbers]

        def contexts(held: list[SiteData] = held) -> list[SiteContext]:
            return [site.context(site.seed, site=i, data=h) for i, h in zip(numbers, held)]

        moved = together_less_alone(contexts, site.question(1))
        if moved is None:
            return
        worst = max(worst, float(np.abs(moved).max()) / site.deviation)
    yield judging.together_test(worst, len(numbers), "deviations of the noise")
