"""The parts of mechanisms that hide whole sites, tested on the run's own code.

central, dp-ftrl: the site's clip, the coordinator's noise and its division, who takes part; for
dp-ftrl also how the noise is correlated over rounds, and the sensitivity that is promised for it.
distributed: a site's clip and its share of the noise, and the coordinator's division.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from scipy.special import ndtr, ndtri

from cupola.audit import crafted, judging
from cupola.audit.judging import KEPT, NUMBERS, SAME, VECTORS, Places, Test
from cupola.audit.replayed_run import (
    Subject,
    as_tensor,
    direction,
    flat,
    state_of,
    together_less_alone,
)
from cupola.base.randomness import derive, generator
from cupola.data.dataset import Dataset, SiteData
from cupola.errors import FederationError
from cupola.federation.federation import Total
from cupola.federation.message import Contribution, Question
from cupola.federation.program import State
from cupola.federation.site import SiteContext
from cupola.privacy.events import Gaussian, SampledGaussian
from cupola.privacy.matrix import find as find_matrix
from cupola.privacy.persample.rules import ROUNDING
from cupola.secure.wrapped_question import layout_of
from cupola.training import loop as program_of
from cupola.training.local import train, turn_of
from cupola.training.mechanisms.central import CentralCoordinator
from cupola.training.mechanisms.coordinator import Coordinator, joined
from cupola.training.mechanisms.distributed import DistributedCoordinator
from cupola.training.mechanisms.dp_ftrl import FtrlCoordinator
from cupola.training.mechanisms.site_level import SiteLevel
from cupola.training.participation import expected_sites

COUNTS = 2000  # releases for the noise on counts; a fifth for large models
ROUNDS = 4000  # rounds in which sites are drawn
PERIOD = 8  # rounds of dp-ftrl whose correlation is tested
MOST_STEPS = 2048  # rounds of dp-ftrl for which the factor matrix is written out
NO_CLIP = 1e30
CASES = 12
ROWS = 32  # of a crafted site


def clipped_sums(subject: Subject, seed: int) -> Iterator[Test]:
    yield _clip(subject, seed)
    yield from _together(subject, seed)
    yield from divided_sums(subject, seed)


def divided_sums(subject: Subject, seed: int) -> Iterator[Test]:
    yield _division(subject, seed)
    yield from _participation(subject, seed)


def _update(subject: Subject, seed: int) -> Contribution:
    """A site's update of the length of the clip, in a direction of its own."""
    across = subject.privacy.clip * direction(seed, "update", subject.space.flat.numel())
    parts = subject.space.split(as_tensor(across, subject.space))
    return Contribution(subject.space.named("model", parts))


def _total(contribution: Contribution, times: int = 1) -> Total:
    found = Total()
    for site in range(times):
        found.add(site, contribution)
    return found


def _quiet(coordinator: Coordinator) -> Coordinator:
    silent = coordinator.privacy.model_copy(update={"noise_multiplier": 0.0})
    return replace(coordinator, privacy=silent)


def _mean(coordinator: Coordinator, state: State, total: Total, round: int) -> np.ndarray:
    return joined(list(coordinator.mean(state, total, round)[0].values()))


# central


def fresh_noise(subject: Subject, seed: int) -> Iterator[Test]:
    privacy, coordinator = subject.privacy, replace(subject.program.coordinator, seed=seed)
    assert isinstance(coordinator, CentralCoordinator)
    places = Places.of(subject.space)
    state, total = state_of(subject.question(1)), _total(_update(subject, seed))
    clip = privacy.clip * (1 + ROUNDING)
    sites = expected_sites(coordinator.participation, len(subject.host))
    deviation = _sum_noise(subject, coordinator) * clip / sites
    exact = _mean(_quiet(coordinator), state, total, 1)

    def noise(by: Coordinator, round: int) -> np.ndarray:
        return ((_mean(by, state, total, round) - exact) / deviation)[places.index]

    many = max(VECTORS, -(-NUMBERS // len(places.index)))
    z = np.stack([noise(coordinator, round) for round in range(1, many + 1)])
    yield from judging.noise_tests(z, places.blocks, "the coordinator's mean updates")
    labels = [*(f"round {i + 1}" for i in range(VECTORS)), "round 1 of another run"]
    other = noise(replace(coordinator, seed=derive(seed, "another run")), 1)
    yield judging.freshness_test(np.stack([*z[:VECTORS], other]), labels)
    real = replace(coordinator, seed=None)
    z = np.stack([noise(real, 1) for _ in range(many)])
    yield from judging.real_noise_tests(z, "real coordinator", "mean updates", VECTORS)
    if privacy.quantile is not None:
        yield _counts(subject, coordinator, state)


def _sum_noise(subject: Subject, coordinator: CentralCoordinator) -> float:
    """The multiplier of the sum's noise: of the events that are accounted, less what the counts
    take (both together are one Gaussian; Andrew et al. 2021)."""
    accounted = subject.events(subject.site())
    noise = next(e.noise for e in accounted if isinstance(e, Gaussian | SampledGaussian))
    if subject.privacy.quantile is None:
        return noise
    return float((noise**-2 - (2 * coordinator.counts_noise) ** -2) ** -0.5)


def _counts(subject: Subject, coordinator: CentralCoordinator, state: State) -> Test:
    """The noise on the count of short updates, read off the next clip."""
    privacy, expected = subject.privacy, coordinator.expected
    deviation = coordinator.counts_noise
    near = min(float(ndtri(0.75)) * deviation, 0.49 * expected)
    many = COUNTS if subject.space.flat.numel() < KEPT else COUNTS // 5
    small = 0
    for round in range(1, many + 1):
        _, values = coordinator.mean(state, Total(), round)
        moved = math.log(values["clip"] / privacy.clip) / privacy.clip_rate
        below = (privacy.quantile or 0.0) - moved
        small += abs(below - 0.5) * expected < near
    rates = [2 * float(ndtr(k * near / deviation)) - 1 for k in (1, 2)]
    return judging.count_test(small, many, rates[0], rates[1], "counts of updates below the clip")


# dp-ftrl


def correlated_noise(subject: Subject, seed: int) -> Iterator[Test]:
    """Noise over rounds, multiplied by the inverse root of its promised covariance: fresh noise."""
    places, privacy = Places.of(subject.space), subject.privacy
    coordinator = replace(subject.program.coordinator, seed=seed)
    assert isinstance(coordinator, FtrlCoordinator)
    whole = privacy.restart or coordinator.rounds
    steps = min(PERIOD, coordinator.pattern(1)["steps"])
    factor = find_matrix(privacy.matrix).dense(steps)[0]
    root = np.linalg.cholesky(factor @ factor.T)
    sites = expected_sites(coordinator.participation, len(subject.host))
    deviation = (privacy.noise_multiplier or 0.0) * privacy.clip * (1 + ROUNDING) / sites

    def whitened(by: FtrlCoordinator, after: int) -> np.ndarray:
        noise = _prefix_noise(subject, by, after, min(steps, by.pattern(after + 1)["steps"]))
        fresh = np.linalg.solve(root[: len(noise), : len(noise)], noise)
        return fresh[:, places.index] / deviation

    many = max(1, -(-NUMBERS // (steps * len(places.index))))
    runs = [whitened(replace(coordinator, seed=derive(seed, "run", i)), 0) for i in range(many)]
    z = np.concatenate(runs)
    about = f"noise of {steps} rounds against the factor matrix '{privacy.matrix}'"
    yield from judging.noise_tests(z, places.blocks, about)
    fresh, labels = list(runs[0]), [f"round {i + 1}" for i in range(steps)]
    if whole < coordinator.rounds:
        again = whitened(replace(coordinator, seed=derive(seed, "run", 0)), whole)
        fresh += list(again)
        labels += [f"round {whole + i + 1}" for i in range(len(again))]
    other = whitened(replace(coordinator, seed=derive(seed, "another run")), 0)
    fresh.append(other[0])
    labels.append("round 1 of another run")
    yield judging.freshness_test(np.stack(fresh), labels, "correlation of noise over rounds")
    yield from _sensitivity(subject, coordinator)


def _prefix_noise(subject: Subject, by: FtrlCoordinator, after: int, steps: int) -> np.ndarray:
    """The noise in the sums that follow from the model of each round, (steps, d)."""
    question = subject.question(1)
    total = _total(_update(subject, by.seed or 0))
    state = State(after, dict(question.arrays), {"round": after})
    before, found = np.zeros(1), []
    for step in range(1, steps + 1):
        state = state.next(by.follow(state, total, after + step, 1.0))
        velocity = state.arrays["ftrl/velocity"]
        released = velocity - by.server.momentum * before
        found.append(released - state.arrays["ftrl/sum"])
        before = velocity
    return np.stack(found)


def _sensitivity(subject: Subject, coordinator: FtrlCoordinator) -> Iterator[Test]:
    """The promised sensitivity against participation patterns, written out."""
    pattern = coordinator.pattern(1)
    steps, gap = pattern["steps"], pattern["separation"]
    if steps > MOST_STEPS:
        return
    right = find_matrix(subject.privacy.matrix).dense(steps)[1]
    random, worst = generator(0, "patterns"), 0.0
    for number in range(min(gap, 32) + 64):
        if number < min(gap, 32):
            places = np.arange(number, steps, gap)
        else:
            spread = gap + random.integers(0, max(1, steps // pattern["participations"] - gap + 1),
                                           size=pattern["participations"])  # fmt: skip
            places = np.cumsum(spread) - gap
            places = places[places < steps]
        places = places[: pattern["participations"]]
        worst = max(worst, float(np.linalg.norm(right[:, places].sum(1))))
    promised = max(
        (subject.privacy.noise_multiplier or 0.0) / event.noise
        for event in subject.run_events()
        if isinstance(event, Gaussian) and event.noise > 0
    )
    yield judging.bound_test(
        worst / promised, 1 + 1e-9, "sensitivity",
        f"{steps} rounds, up to {pattern['participations']} participations at least {gap} apart",
        "sensitivity / 2", f"{worst / promised:.4g} of the promised", could=2 * worst / promised,
    )  # fmt: skip


# The site's clip


def _clip(subject: Subject, seed: int) -> Test:
    """What a site sends, with crafted data and weights."""
    site = subject.site()
    held = subject.host.data(site).train
    kinds = crafted.INPUTS if subject.space.problem.tokens is None else crafted.TOKENS
    worst, where, longest, sent = 0.0, "", 0.0, 0
    for number in range(CASES):
        kind = kinds[number % len(kinds)]
        how = crafted.WEIGHTS[number % len(crafted.WEIGHTS)]
        own = derive(seed, "clip", number)
        rows = crafted.inputs(subject.space.problem, held, kind, min(len(held), ROWS), own)
        model = subject.models[0 if how == "first" else -1]
        question = replace(subject.question(1), arrays=crafted.weights(model, how, own))
        length = _length(subject, site, rows, question, None)
        if length is None:
            continue  # not finite: nothing is sent
        sent += 1
        longest = max(longest, _length(subject, site, rows, question, NO_CLIP) or 0.0)
        if not length <= worst:
            worst, where = length, f"{kind} inputs, {how} weights"
    limit = 1 + ROUNDING
    return judging.bound_test(
        worst, limit, "clip", f"what a site sends, {sent} crafted data sets and models",
        judging.DOUBLED, f"at most {worst:.4g} clips ({where})", could=min(2.0, longest),
    )  # fmt: skip


def _length(
    subject: Subject, site: int, rows: Dataset, question: Question, clip: float | None
) -> float | None:
    """Norm of what a site sends, in clips; None where it sends nothing."""
    if clip is not None:
        privacy = {**question.options["privacy"], "clip": clip}
        question = replace(question, options={**question.options, "privacy": privacy})
    try:
        answer = train(subject.context(site, SiteData(rows), subject.program.seed), question)
    except FederationError:
        return None
    return float(np.linalg.norm(flat(answer.arrays))) / subject.privacy.clip


def _together(subject: Subject, seed: int) -> Iterator[Test]:
    """The form for many sites must answer what they answer alone."""
    numbers = subject.some_sites()

    def contexts() -> list[SiteContext]:
        return [subject.context(i, subject.host.data(i), seed) for i in numbers]

    moved = together_less_alone(contexts, subject.question(1))
    if moved is not None:
        worst = float(np.linalg.norm(moved)) / subject.privacy.clip
        yield judging.together_test(worst, len(numbers), "clips")


# distributed


def shares(subject: Subject, seed: int) -> Iterator[Test]:
    privacy, space, coordinator = subject.privacy, subject.space, subject.program.coordinator
    assert isinstance(coordinator, DistributedCoordinator)
    shares = coordinator.shares
    places, question, site = Places.of(space), subject.question(1), subject.site()
    none = [torch.zeros_like(p) for p in space.params]
    held = subject.host.data(site)
    deviation = (privacy.noise_multiplier or 0.0) * privacy.clip / math.sqrt(shares.honest)
    party = SimpleNamespace(roster=SimpleNamespace(minimum=subject.program.sum.minimum))
    layout = layout_of(question, subject.program.sites)

    def context(number: int, seed: int, real: bool = False) -> SiteContext:
        found = replace(subject.context(number, held, seed), real=real)
        found.party, found.hidden = party, layout
        return found

    def share(
        round: int, number: int = site, update: list[torch.Tensor] = none, real: bool = False
    ) -> np.ndarray:
        asked = replace(question, round=round)
        turn = turn_of(context(number, seed, real), asked)
        return flat(subject.mechanism.at_site(turn, update))

    many = max(VECTORS, -(-NUMBERS // len(places.index)))
    z = np.stack([share(r)[places.index] for r in range(1, many + 1)]) / deviation
    about = f"shares of site {site}, {shares.honest} of which make the promised noise"
    yield judging.variance_test(z, "noise variance", about)
    yield judging.blocks_test(z, places.blocks, about)
    others = [i for i in range(subject.program.sites) if i != site][:2]
    fresh = [*z[:VECTORS], *(share(1, i)[places.index] for i in others)]
    labels = [f"round {i + 1}" for i in range(VECTORS)]
    labels += [f"round 1 of site {i}" for i in others]
    yield judging.freshness_test(np.stack(fresh), labels)
    z = np.stack([share(1, real=True)[places.index] for _ in range(many)]) / deviation
    yield from judging.real_noise_tests(z, "real site", "shares", VECTORS)

    # With the same seed the noise is the same: what is left is the clipped update.
    across = direction(seed, "shares", space.flat.numel())
    worst, where = 0.0, ""
    for length in (1e-30, 0.5, 1.0, 3.0, 1e3, 1e12, 1e30, math.inf, math.nan):
        vector = as_tensor(across * length * privacy.clip, space)
        moved = np.linalg.norm(share(1, update=space.split(vector)) - share(1)) / privacy.clip
        if not moved <= worst:
            worst, where = float(moved), f"of length {length:g} clips"
    trained = flat(train(context(site, seed), question).arrays) - share(question.round)
    worst = max(worst, float(np.linalg.norm(trained)) / privacy.clip)
    yield judging.bound_test(
        worst, 1 + 1e-6, "clip", "a site's share with updates of nine lengths, and its own",
        judging.DOUBLED, f"at most {worst:.6g} clips ({where})", could=2.0,
    )  # fmt: skip


# Division, participation


def _division(subject: Subject, seed: int) -> Test:
    """Whether a total is divided by the expected number of sites, however many came."""
    coordinator = _quiet(replace(subject.program.coordinator, seed=seed))
    answer = _update(subject, seed)
    state, one = state_of(subject.question(1)), flat(answer.arrays)
    expected = expected_sites(coordinator.participation, len(subject.host))
    worst, said = 0.0, ""
    for came in (1, 3):
        mean = _mean(coordinator, state, _total(answer, came), 1)
        part = float(mean @ one / (one @ one)) * expected / came
        if not abs(part - 1) <= worst:
            worst, said = abs(part - 1), f"{part:.4g} of its share where {came} came"
    could = max(abs(expected / came - 1) for came in (1, 3))
    return judging.bound_test(
        worst, SAME, "division of the sum", f"a site's part, {expected:g} sites expected",
        "division by the sites that came", said or "1 of its share", could=could,
    )  # fmt: skip


def _participation(subject: Subject, seed: int) -> Iterator[Test]:
    """How often sites are asked, against what is accounted."""
    program, choice = subject.program, subject.program.participation
    sampled = [e for e in subject.run_events() if isinstance(e, SampledGaussian)]
    if sampled:
        many = min(ROUNDS, max(100, 2_000_000 // program.sites))
        asked = sum(len(program_of.draw(choice, program.sites, seed, r + 1)) for r in range(many))
        yield judging.rate_test(
            asked, many * program.sites, sampled[0].rate, "participation rate",
            f"sites drawn in {many:,} rounds",
        )  # fmt: skip
        return
    done = max(1, subject.done)
    counts = np.zeros(program.sites, np.int64)
    least = np.full(program.sites, np.inf)  # rounds between two participations
    last = np.full(program.sites, -np.inf)
    for round in range(1, done + 1):
        who = program_of.draw(choice, program.sites, program.seed, round)
        least[who] = np.minimum(least[who], round - last[who])
        last[who] = round
        counts[who] += 1
    assert isinstance(subject.mechanism, SiteLevel)
    rounds = program.training_rounds
    allowed, near = subject.mechanism.accounted(choice, program.sites, rounds, done)
    worst = max(float(counts.max()) / allowed, near / float(least.min()))
    yield judging.bound_test(
        worst, 1.0, "participation", f"{program.sites} sites in the {done} rounds of the run",
        "sites asked twice as often",
        f"a site was asked {counts.max()} times, {allowed} are accounted", could=2.0,
    )  # fmt: skip
