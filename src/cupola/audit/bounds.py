"""From repeated rounds to a lower bound on epsilon, beside what is claimed for the same rounds.

The claim is a whole curve: the accountant knows an epsilon for every delta, and repeated rounds may
contradict it anywhere. At a delta of 1e-5 alone only rare events count, of which there are few.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from cupola.audit import onerun
from cupola.audit.canaries import Experiment
from cupola.audit.registry import audited
from cupola.audit.replayed_run import Step, Subject
from cupola.base.cores import one_core_each
from cupola.base.randomness import derive
from cupola.privacy.lower_bounds import (
    Bound,
    Contradiction,
    contradiction,
    upper_rate,
    vector_lower_bound,
)

FALSE_ALARM = 5e-4  # of all canaries together: half of the verdict's
DELTAS = (1e-3, 0.01, 0.03, 0.1, 0.2)  # where the claim is tested, beside its own
PATIENCE = 60.0  # seconds that canaries may take unless trials are asked for
TIMED = 0.03  # of the patience, to see how long one takes: a single pair says little
MOST_TRIALS, LEAST_TRIALS = 5000, 100


@dataclass(frozen=True)
class Finding:
    """What one canary showed. curve decides; bound is at the run's own delta, gaussian rests on its
    assumption."""

    experiment: Experiment
    bound: Bound
    gaussian: Bound
    curve: Contradiction
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "canary": self.experiment.canary,
            "about": self.experiment.about,
            "norm_in_clips": self.experiment.strength,
            "lower_bound": _plain(self.bound),
            "gaussian_estimate": _plain(self.gaussian),
            "curve": asdict(self.curve),
            "refutes": self.curve.refutes,
            "seconds": round(self.seconds, 3),
        }


def _plain(bound: Bound) -> dict[str, Any]:
    kept = ("epsilon", "confidence", "assumption", "trials", "fpr", "fnr")
    return {name: getattr(bound, name) for name in kept}


def vectors(
    experiment: Experiment, trials: int, seed: int, workers: int = 1, step: Step | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """`trials` repetitions with the canary and as many without, each with randomness of its own.

    workers: processes; they change no result.
    """
    seen = []
    for pair in _pairs(experiment, trials, seed, workers):
        seen.append(pair)
        if step is not None:
            step(f"{experiment.canary} canary", len(seen), trials)
    one, two = zip(*seen)
    return np.array(one), np.array(two)


Pair = tuple[np.ndarray, np.ndarray]


def _pair(experiment: Experiment, seed: int, number: int) -> Pair:
    """One trial with the canary and one without."""
    one, two = (
        experiment.trial(included, derive(seed, f"audit {experiment.canary} {world}", number))
        for included, world in ((True, "with"), (False, "without"))
    )
    return one, two


def _pairs(experiment: Experiment, trials: int, seed: int, workers: int) -> Iterator[Pair]:
    forks = "fork" in multiprocessing.get_all_start_methods()
    with one_core_each():
        if workers < 2 or not forks or torch.cuda.is_available():
            yield from (_pair(experiment, seed, number) for number in range(trials))
            return
        # A trial is a closure over the run's data and model: forked workers have it already.
        global _work
        _work = (experiment, seed)
        with multiprocessing.get_context("fork").Pool(workers) as pool:
            yield from pool.imap(_forked, range(trials), chunksize=4)


_work: tuple[Experiment, int]


def _forked(number: int) -> Pair:
    return _pair(*_work, number)


def finding(
    subject: Subject,
    experiment: Experiment,
    *,
    trials: int,
    seed: int,
    confidence: float,
    claims: list[tuple[float, float]],
    workers: int = 1,
    step: Step | None = None,
) -> Finding:
    """The lower bound that one canary gives."""
    began = time.monotonic()
    one, two = vectors(experiment, trials, seed, workers, step)
    delta = subject.privacy.delta
    bound, gaussian = (
        vector_lower_bound(one, two, delta, confidence=confidence, gaussian=assumed)
        for assumed in (False, True)
    )
    curve = contradiction(one, two, claims, confidence=confidence)
    return Finding(experiment, bound, gaussian, curve, time.monotonic() - began)


def canary_audit(
    subject: Subject,
    *,
    trials: int | None,
    seed: int,
    confidence: float = 1 - FALSE_ALARM,
    workers: int = 1,
    step: Step | None = None,
) -> dict[str, Any]:
    """Lower bounds from every canary that fits, the claim for the same rounds, and a verdict.

    trials: None for as many as PATIENCE allows. The confidence is shared between the canaries, so
    that the verdict has it as a whole.
    """
    site = subject.site()
    events = subject.events(site)
    claim, delta = subject.epsilon(events), subject.privacy.delta
    made = audited(subject).canaries(subject, site, derive(seed, "audit", 0, site))
    pooled = onerun.possible(subject, site)
    each = 1 - (1 - confidence) / (len(made) + pooled)
    found: list[Finding] = []
    why = None
    if trials is None:
        trials, why = _affordable(made, workers)
    if trials:
        claims = [(delta, claim), *((d, subject.epsilon(events, d)) for d in DELTAS if d > delta)]
        effort: dict[str, Any] = {"trials": trials, "seed": seed, "workers": workers, "step": step}
        found = [finding(subject, e, confidence=each, claims=claims, **effort) for e in made]
    many = None
    if trials and pooled:
        many = onerun.one_run_audit(
            subject, site, events, trials=trials, seed=seed, level=1 - each, step=step
        )
    refuted = any(f.curve.refutes for f in found) or bool(many and many["refutes"])
    return {
        "mechanism": subject.mechanism.name,
        "unit": subject.mechanism.unit,
        "neighbours": subject.privacy.neighbours,
        "site": site,
        "rounds": subject.rounds,
        "models": "first and final, in turn",
        "trials": trials,
        "without_trials": why,
        "confidence": confidence,
        "delta": delta,
        "events": [event.as_dict() for event in events],
        "claim": claim,
        "run_epsilon": (subject.run.result.get("privacy") or {}).get("epsilon"),
        "lower_bound": max((f.bound.epsilon for f in found), default=0.0),
        "reach": reach(trials, delta, each) if trials else 0.0,
        "canaries": [f.as_dict() for f in found],
        "many_canaries": many,
        "verdict": "refuted" if refuted else "consistent",
    }


def _affordable(made: list[Experiment], workers: int) -> tuple[int, str | None]:
    """Trials that fit into the patience, or why there are none."""
    began = time.monotonic()
    for experiment in made:
        _pair(experiment, 0, 0)  # the first one prepares much
    first = time.monotonic() - began
    if first * LEAST_TRIALS > 20 * PATIENCE * workers:
        return 0, _too_long(first * LEAST_TRIALS / workers)
    began, pairs = time.monotonic(), 0
    while pairs < LEAST_TRIALS and time.monotonic() - began < TIMED * PATIENCE:
        pairs += 1
        for experiment in made:
            _pair(experiment, 0, pairs)
    takes = (time.monotonic() - began) / pairs / workers
    trials = min(MOST_TRIALS, int(PATIENCE / max(takes, 1e-9)))
    if trials < LEAST_TRIALS:
        return 0, _too_long(takes * LEAST_TRIALS)
    return trials, None


def _too_long(seconds: float) -> str:
    return f"{LEAST_TRIALS} trials would take about {seconds:,.0f} s; ask for them (--trials)"


def reach(trials: int, delta: float, confidence: float) -> float:
    """The largest lower bound that so many trials can give: with no error in the last third."""
    last = trials - trials // 3 - (trials - trials // 3) // 2
    rate = float(upper_rate(0, max(last, 1), (1 - confidence) / 2))
    return max(0.0, math.log(max(1 - delta - rate, 1e-300) / rate))
