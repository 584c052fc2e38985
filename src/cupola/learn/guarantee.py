"""What a training promises: the noise it needs, what its sites spend, and what nothing protects.

Known before the first question: who is asked in which round is drawn from the seed, and what a site
spends depends on its size and the plan alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cupola.errors import PlanError
from cupola.learn.choices import Local, Participation, Privacy
from cupola.learn.participation import draw, expected_sites, most_participations
from cupola.learn.private import (
    binary_problems,
    ftrl_event,
    private_steps,
    sampling_rate,
    site_events,
)
from cupola.learn.shares import about_shares
from cupola.privacy.accounting import calibrate, epsilon, within
from cupola.privacy.distributed import event as shares_event
from cupola.privacy.events import Event, Gaussian, SampledGaussian
from cupola.privacy.persample import unsupported

if TYPE_CHECKING:
    from cupola.learn.training import Training

HARDEST = 3  # of the candidates for the site that spends most, so many are accounted exactly
SHOWN = 50  # groups of equal sites that are accounted one by one
SIMULATED = "simulated: the seed tells the noise, so this epsilon is not valid for release"


@dataclass(frozen=True)
class Group:
    """Sites that spend alike: how many, their samples (0: any), answers each, and epsilon."""

    sites: int
    samples: int
    answers: int
    events: tuple[Event, ...]
    epsilon: float


@dataclass(frozen=True)
class Guarantee:
    """A training's promise at its end.

    unit: whose presence is hidden. against: from whom. epsilon: of the unit that spends most.
    groups: of sites, largest epsilon first. unprotected: what else is told. warnings: what a
    reader should know. status: whether it may be relied on.
    """

    mechanism: str
    unit: str
    against: str
    neighbours: str
    delta: float
    noise: float | None
    epsilon: float
    groups: tuple[Group, ...]
    unprotected: tuple[str, ...]
    warnings: tuple[str, ...]
    status: str = SIMULATED


def protection(privacy: Privacy, clip: float) -> str:
    """A mechanism in a few words, for the ledger."""
    if not privacy.on:
        return "none"
    strength = (
        f"epsilon {privacy.answer_epsilon:.4g} an answer"
        if privacy.mechanism == "objective"
        else f"noise {privacy.noise:.4g}"
    )
    return f"{privacy.mechanism}, {strength}, clip {clip:.4g}"


# Which combinations are possible


def require_possible(training: Training) -> None:
    """Refuse what a mechanism cannot protect, with the way out."""
    privacy, local = training.privacy, training.local
    if not privacy.on:
        if privacy.budget is not None:
            raise PlanError(
                "privacy.budget without privacy.mechanism: sites would refuse every answer; "
                "choose a mechanism ('dp-sgd', say) or drop the budget"
            )
        return
    name = f"privacy.mechanism = '{privacy.mechanism}'"
    if training.task != "train":
        raise PlanError(f"{name} protects the task 'train', not '{training.task}'")
    mixes = training.problem.properties.batch_dependent
    reason = unsupported(training.problem.build()) or (
        f"layer '{mixes[0]}' mixes the samples of a batch" if mixes else None
    )
    if reason:
        raise PlanError(
            f"{name}: {reason}; no single example can be protected there. Use a model with "
            "group or layer normalisation"
        )
    if privacy.of_sites:
        _require_clippable(training, name)
    elif privacy.mechanism in ("output", "objective"):
        from cupola.learn.convex import require_convex

        require_convex(training)
    elif local.control_variates:
        raise PlanError(f"{name}: control variates (SCAFFOLD) are not accounted for; use fedavg")
    if privacy.budget is not None:
        _require_protected(training)


def _require_clippable(training: Training, name: str) -> None:
    privacy, local, server = training.privacy, training.local, training.server
    if local.weighting != "uniform":
        raise PlanError(
            f"{name} needs local.weighting = 'uniform': with weights by samples the largest site "
            "would count more than the noise hides"
        )
    if local.control_variates or local.send == "normalised":
        raise PlanError(f"{name} protects the update alone; use local.send = 'change', no variates")
    if privacy.quantile is not None and privacy.noise:
        least = privacy.noise / 2
        given = training.coordinator.counts_noise
        if given <= least:
            raise PlanError(
                f"privacy.counts_noise = {given:.3g} must be above {least:.3g} (half of the noise "
                "multiplier), or the counts alone spend more than the target"
            )
    if privacy.mechanism == "distributed" and not training.sum.masked:
        raise PlanError(
            f"{name} needs sum = 'masked': a site's share of the noise is too little to hide it "
            "where its own numbers are seen; or use mechanism = 'central'"
        )
    if privacy.mechanism != "dp-ftrl":
        return
    if training.participation.kind not in ("at-most-once", "rotation", "all"):
        raise PlanError(
            f"{name} needs participation.kind = 'at-most-once', 'rotation' or 'all': its noise "
            f"holds for a pattern, and '{training.participation.kind}' keeps none"
        )
    fixed = (server.schedule is None or server.schedule.kind == "constant") and (
        local.send == "change" or local.schedule.kind == "constant"
    )
    if server.optimizer != "sgd" or server.weight_decay or not fixed:
        raise PlanError(
            f"{name} takes server.optimizer = 'sgd' with momentum, without weight decay or a "
            "schedule: the model is a function of the noised sum of all updates"
        )
    if (
        privacy.matrix.startswith("tree")
        and privacy.restart == 0
        and training.training_rounds > 2**20
    ):
        raise PlanError(
            f"{name}: set privacy.restart; {training.training_rounds} rounds make a deep tree"
        )


def _require_protected(training: Training) -> None:
    told = unprotected(training)
    if told:
        raise PlanError(
            f"privacy.budget: sites refuse answers that nothing protects ({'; '.join(told)}); "
            "judge on public data (evaluation.on = 'public', train and per_site = false, no "
            "validation parts at sites) and use local.weighting = 'uniform'"
        )


def unprotected(training: Training) -> tuple[str, ...]:
    """What sites tell beside the noised answers."""
    judge = training.evaluation
    told = []
    if training.local.weighting == "samples":
        told.append("the number of samples that sites used, as weights")
    if judge.on in ("sites", "both"):
        told.append("metrics on what sites hold out for testing")
    if "validation" in training.site_splits and "validation" not in training.public:
        told.append("metrics on what sites hold out for validation")
        if judge.best or judge.patience:
            told.append("which round was best by them")
    if judge.train:
        told.append("metrics on what sites train on")
    if judge.per_site:
        told.append("each site's own metrics")
    return tuple(told)


def _secret_sampling(training: Training) -> bool:
    """Whether the promise rests on nobody knowing who took part."""
    kind = training.participation.kind
    by_share = kind == "fraction" and training.privacy.neighbours == "replace-one"
    return training.privacy.mechanism == "central" and (kind == "poisson" or by_share)


# Noise from epsilon


def resolve(
    privacy: Privacy,
    local: Local,
    participation: Participation,
    *,
    sites: int,
    rounds: int,
    seed: int,
    sizes: np.ndarray,
    problems: int = 1,
) -> Privacy:
    """The same choice with its noise found. sizes: samples of every site; problems: binary ones
    that a convex answer solves."""
    if not privacy.on or privacy.epsilon is None:
        return privacy
    answers = _answers(participation, sites, rounds, seed)
    pairs = _pairs(sizes, answers)
    if not pairs and not privacy.of_sites:
        raise PlanError("no site with samples takes part in any round: there is nothing to protect")
    target, delta, relation = privacy.epsilon, privacy.delta, privacy.neighbours

    def needed(events_at: Callable[[float], Sequence[Event]]) -> float:
        return calibrate(events_at, target, delta, neighbours=relation, method=privacy.accountant)

    def at_site(noise: float, pair: tuple[int, int]) -> list[Event]:
        n, many = pair
        trial = _with_noise(privacy, noise)
        return [event.times(many) for event in site_events(trial, local, n, problems)]

    if privacy.of_sites:

        def released(noise: float) -> Sequence[Event]:
            return coordinator_events(_with_noise(privacy, noise), participation, sites, rounds)

        return _with_noise(privacy, needed(released))
    found = max(needed(partial(at_site, pair=pair)) for pair in _hardest(privacy, local, pairs))
    for pair in pairs:  # those that were not expected to spend most
        if not within(at_site(found, pair), target, delta, neighbours=relation):
            found = max(found, needed(partial(at_site, pair=pair)))
    return _with_noise(privacy, found)


def _with_noise(privacy: Privacy, noise: float) -> Privacy:
    """With this noise; objective perturbation has the inverse of an epsilon instead."""
    if privacy.mechanism == "objective":
        return privacy.model_copy(update={"epsilon": None, "answer_epsilon": 1 / noise})
    return privacy.model_copy(update={"epsilon": None, "noise": noise})


def _answers(choice: Participation, sites: int, rounds: int, seed: int) -> np.ndarray:
    """How often each site is asked in the run."""
    if choice.kind == "all":
        return np.full(sites, rounds)
    counts = np.zeros(sites, np.int64)
    for round in range(1, rounds + 1):
        counts[draw(choice, sites, seed, round)] += 1
    return counts


def _pairs(sizes: np.ndarray, answers: np.ndarray) -> dict[tuple[int, int], int]:
    """(samples, answers) -> sites."""
    table = np.stack([np.asarray(sizes, np.int64), answers], 1)
    table = table[(table > 0).all(1)]
    found, counts = np.unique(table, axis=0, return_counts=True)
    return {(int(n), int(a)): int(c) for (n, a), c in zip(found, counts)}


def _hardest(
    privacy: Privacy, local: Local, pairs: dict[tuple[int, int], int]
) -> list[tuple[int, int]]:
    """The pairs that may spend most: by steps * rate^2, which decides for small rates, and the
    largest rate and the most steps beside."""

    def spends(pair: tuple[int, int]) -> float:
        n, answers = pair
        if privacy.mechanism != "dp-sgd":
            return answers
        return answers * private_steps(n, local) * sampling_rate(n, local) ** 2

    ranked = sorted(pairs, key=spends, reverse=True)[:HARDEST]
    smallest = min(pairs, key=lambda pair: (pair[0], -pair[1]))
    longest = max(pairs, key=lambda pair: (pair[1] * private_steps(pair[0], local), -pair[0]))
    return list(dict.fromkeys([*ranked, smallest, longest]))


def coordinator_events(
    privacy: Privacy, participation: Participation, sites: int, rounds: int
) -> tuple[Event, ...]:
    """What the released models (distributed: the totals) tell about any one site, over the run.

    Amplification by sampling is claimed where the coordinator draws sites in secret: 'poisson', and
    for replaced sites 'fraction'; never where it is an adversary itself.
    """
    noise = privacy.noise or 0.0
    if privacy.mechanism == "distributed":
        return (shares_event(noise).times(most_participations(participation, sites, rounds)),)
    if privacy.mechanism == "dp-ftrl":
        from cupola.learn.choices import Server
        from cupola.learn.noised import Coordinator

        plan = Coordinator(privacy, participation, Server(), sites, rounds, 0)
        whole = privacy.restart or rounds
        patterns = [plan.pattern(first) for first in range(1, rounds + 1, whole)]
        events = [ftrl_event(privacy.matrix, noise, **pattern) for pattern in patterns]
        if participation.kind == "at-most-once":
            return (min(events, key=lambda event: event.noise),)  # nobody is in two periods
        return tuple(events)
    if participation.kind == "poisson":
        return (SampledGaussian(participation.fraction or 0.0, noise, rounds),)
    if participation.kind == "fraction" and privacy.neighbours == "replace-one":
        share = expected_sites(participation, sites) / sites
        return (SampledGaussian(share, noise, rounds, "without-replacement"),)
    return (Gaussian(noise, most_participations(participation, sites, rounds)),)


# The promise


def against(training: Training) -> str:
    """From whom the training's mechanism hides."""
    if training.shares is not None:
        return (
            "everybody, coordinator included, if masks hold and at least "
            f"{training.shares.honest - 1} others of a total's sites add their share of the "
            "noise and keep it to themselves"
        )
    if training.privacy.of_sites:
        return "everybody who sees models, but not the coordinator"
    return "everybody outside the site"


def guarantee(training: Training, sizes: np.ndarray) -> Guarantee | None:
    """What this training promises at its end; None without a mechanism."""
    privacy = training.privacy
    if not privacy.on:
        return None
    if privacy.of_sites:
        events = coordinator_events(
            privacy, training.participation, training.sites, training.training_rounds
        )
        groups = [Group(training.sites, 0, 0, events, _epsilon(privacy, events))]
        unit = "site"
    else:
        answers = _answers(
            training.participation, training.sites, training.training_rounds, training.seed
        )
        pairs = _pairs(sizes, answers)
        problems = binary_problems(training.problem.classes)
        shown = list(pairs)
        if len(shown) > SHOWN:
            shown = _hardest(privacy, training.local, pairs)
        groups = []
        for n, many in shown:
            each = site_events(privacy, training.local, n, problems)
            events = tuple(event.times(many) for event in each)
            groups.append(Group(pairs[n, many], n, many, events, _epsilon(privacy, events)))
        groups.sort(key=lambda group: -group.epsilon)
        unit = "example"
    held = int(sizes.max()) if len(sizes) else 0
    count = training.sites if unit == "site" else held
    return Guarantee(
        mechanism=privacy.mechanism,
        unit=unit,
        against=against(training),
        neighbours=privacy.neighbours,
        delta=privacy.delta,
        noise=privacy.noise,
        epsilon=max((group.epsilon for group in groups), default=0.0),
        groups=tuple(groups),
        unprotected=unprotected(training),
        warnings=tuple(_warnings(training, count)),
    )


def _epsilon(privacy: Privacy, events: Sequence[Event]) -> float:
    return epsilon(events, privacy.delta, neighbours=privacy.neighbours, method=privacy.accountant)


def _warnings(training: Training, units: int) -> list[str]:
    privacy = training.privacy
    found = []
    if units and privacy.delta > 1 / units:
        what = "sites" if privacy.of_sites else "samples at the largest site"
        found.append(
            f"privacy.delta = {privacy.delta:g} is larger than 1/n ({units:,} {what}): it allows "
            "telling one of them in full; set it below"
        )
    if privacy.noise == 0:
        found.append("privacy.noise = 0: nothing is hidden, epsilon is infinite")
    if _secret_sampling(training):
        found.append(
            "who took part in which round must stay secret: keep ledger and history to yourself"
        )
    if training.shares is not None:
        found += about_shares(training.shares, training.participation)
        own = (privacy.noise or 0.0) / training.shares.honest**0.5
        alone = shares_event(own).times(
            most_participations(training.participation, training.sites, training.training_rounds)
        )
        found.append(
            "should the masks fail (coordinator and compensator, say, work together), a site's own "
            f"share alone gives epsilon {_epsilon(privacy, (alone,)):.3g}"
        )
    if privacy.mechanism == "dp-sgd":
        found.append("the sizes of sites are taken as public: sampling rates are batch size over n")
    return found
