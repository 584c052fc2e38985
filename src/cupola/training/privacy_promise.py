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
from cupola.privacy.accounting import calibrate, epsilon, within
from cupola.privacy.events import Event
from cupola.privacy.persample.trial import unsupported
from cupola.training.choices import Local, Participation, Privacy
from cupola.training.mechanisms import mechanism_of
from cupola.training.mechanisms.base import Mechanism, binary_problems
from cupola.training.mechanisms.dp_sgd import private_steps
from cupola.training.participation import draw

if TYPE_CHECKING:
    from cupola.training.loop import Training

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


# Which combinations are possible


def require_possible(training: Training) -> None:
    """Refuse what a mechanism cannot protect, with the way out."""
    privacy, mechanism, problem = training.privacy, training.mechanism, training.problem
    if problem.device_noise and not mechanism.per_example:
        raise PlanError(
            "device_noise is for noise that is drawn at every step (privacy.mechanism = 'dp-sgd'); "
            "leave it out"
        )
    if not mechanism.on:
        if privacy.budget is not None:
            raise PlanError(
                "privacy.budget without privacy.mechanism: sites would refuse every answer; "
                "choose a mechanism ('dp-sgd', say) or drop the budget"
            )
        return
    if training.task != "train":
        raise PlanError(f"{mechanism.key} protects the task 'train', not '{training.task}'")
    mixes = training.problem.properties.batch_dependent
    reason = unsupported(training.problem.build()) or (
        f"layer '{mixes[0]}' mixes the samples of a batch" if mixes else None
    )
    if reason:
        raise PlanError(
            f"{mechanism.key}: {reason}; no single example can be protected there. Use a model "
            "with group or layer normalisation"
        )
    if mechanism.per_example and problem.precision != "full":
        raise PlanError(
            f"precision = '{problem.precision}': what {mechanism.key} clips is proven for float32 "
            "and float64 arithmetic, not for products of fewer bits; use precision = 'full'"
        )
    mechanism.check(training)
    if privacy.budget is not None:
        _require_protected(training)


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
    mechanism = mechanism_of(privacy)
    answers = _answers(participation, sites, rounds, seed)
    pairs = _pairs(sizes, answers)
    if not pairs and not mechanism.of_sites:
        raise PlanError("no site with samples takes part in any round: there is nothing to protect")
    target, delta, relation = privacy.epsilon, privacy.delta, privacy.neighbours

    def needed(events_at: Callable[[float], Sequence[Event]]) -> float:
        return calibrate(events_at, target, delta, neighbours=relation, method=privacy.accountant)

    def at_site(noise: float, pair: tuple[int, int]) -> list[Event]:
        n, many = pair
        trial = mechanism_of(mechanism.with_noise(noise))
        return [event.times(many) for event in trial.answer_events(local, n, problems)]

    def released(noise: float) -> Sequence[Event]:
        trial = mechanism_of(mechanism.with_noise(noise))
        return trial.run_events(participation, sites, rounds)

    if mechanism.of_sites:
        return mechanism.with_noise(needed(released))
    found = max(needed(partial(at_site, pair=pair)) for pair in _hardest(mechanism, local, pairs))
    for pair in pairs:  # those that were not expected to spend most
        if not within(at_site(found, pair), target, delta, neighbours=relation):
            found = max(found, needed(partial(at_site, pair=pair)))
    return mechanism.with_noise(found)


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
    mechanism: Mechanism, local: Local, pairs: dict[tuple[int, int], int]
) -> list[tuple[int, int]]:
    """The pairs that may spend most: by the mechanism's own guess, and the largest rate and the
    most steps beside.

    Noise is found by accounting a pair exactly many times over, and a federation may have thousands
    of pairs. So it is found for few, and the others are held against it once each (`within`): a
    wrong guess costs time, never privacy.
    """

    def spends(pair: tuple[int, int]) -> float:
        return mechanism.spends(local, *pair)

    ranked = sorted(pairs, key=spends, reverse=True)[:HARDEST]
    smallest = min(pairs, key=lambda pair: (pair[0], -pair[1]))
    longest = max(pairs, key=lambda pair: (pair[1] * private_steps(pair[0], local), -pair[0]))
    return list(dict.fromkeys([*ranked, smallest, longest]))


# The promise


def guarantee(training: Training, sizes: np.ndarray) -> Guarantee | None:
    """What this training promises at its end; None without a mechanism."""
    privacy, mechanism = training.privacy, training.mechanism
    if not mechanism.on:
        return None
    if mechanism.of_sites:
        events = mechanism.run_events(
            training.participation, training.sites, training.training_rounds
        )
        groups = [Group(training.sites, 0, 0, events, _epsilon(privacy, events))]
    else:
        answers = _answers(
            training.participation, training.sites, training.training_rounds, training.seed
        )
        pairs = _pairs(sizes, answers)
        problems = binary_problems(training.problem.classes)
        shown = list(pairs)
        if len(shown) > SHOWN:
            shown = _hardest(mechanism, training.local, pairs)
        groups = []
        for n, many in shown:
            each = mechanism.answer_events(training.local, n, problems)
            events = tuple(event.times(many) for event in each)
            groups.append(Group(pairs[n, many], n, many, events, _epsilon(privacy, events)))
        groups.sort(key=lambda group: -group.epsilon)
    held = int(sizes.max()) if len(sizes) else 0
    count = training.sites if mechanism.of_sites else held
    return Guarantee(
        mechanism=mechanism.name,
        unit=mechanism.unit,
        against=mechanism.against(training),
        neighbours=privacy.neighbours,
        delta=privacy.delta,
        noise=privacy.noise_multiplier,
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
        what = "sites" if training.mechanism.of_sites else "samples at the largest site"
        found.append(
            f"privacy.delta = {privacy.delta:g} is larger than 1/n ({units:,} {what}): it allows "
            "telling one of them in full; set it below"
        )
    if privacy.noise_multiplier == 0:
        found.append("privacy.noise_multiplier = 0: nothing is hidden, epsilon is infinite")
    return found + training.mechanism.warnings(training)
