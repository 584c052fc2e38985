"""Many canaries in one run of dp-sgd: each is in the data or not by its own coin, and guessed.

Steinke, Nasr and Jagielski (2023): if every answer is (epsilon, delta)-private, then of many
guesses no more are right than of so many coins that fall right with probability e^epsilon /
(1 + e^epsilon), up to a term in delta. It holds for any number of canaries in the same run, and
for several runs pooled, whose canaries are as many more. It needs no second world without them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cupola.audit.replayed_run import Subject, flat
from cupola.base.randomness import derive, generator
from cupola.privacy.events import Event
from cupola.privacy.lower_bounds import one_run_p_value
from cupola.training.local import train

MOST = 64  # canaries in a run
ROOM = 20_000_000  # numbers of all canaries' gradients together
LOUD = 100.0  # norm of a canary's gradient, in clips
SHARES = (0.005, 0.02, 0.1)  # of the canaries, guessed at either end
DELTAS = (1e-9, 1e-7)  # claims that are tested: many canaries need small ones
TRIALS_A_RUN = 10


@dataclass(frozen=True)
class Canaries:
    """Examples 0, 1, ... of a site that are canaries: those present add their own gradient, the
    others none. gradients: (canaries, parameters); signs: by round."""

    present: np.ndarray
    gradients: Tensor
    signs: dict[int, float]

    def drawn(self, index: np.ndarray, round: int) -> tuple[np.ndarray, list[Tensor]]:
        canary = index < len(self.present)
        there = index[canary][self.present[index[canary]]]
        return index[~canary], [self.signs[round] * self.gradients[i] for i in there]


def possible(subject: Subject, site: int) -> bool:
    """dp-sgd with a record more or less, and places for canaries."""
    one_more = subject.privacy.neighbours == "add-remove"
    return subject.mechanism.per_example and one_more and _how_many(subject, site) >= 2


def _how_many(subject: Subject, site: int) -> int:
    size = subject.space.flat.numel()
    return min(len(subject.host.data(site).train) // 2, MOST, size // 2, ROOM // size)


def one_run_audit(
    subject: Subject, site: int, events: tuple[Event, ...], *, trials: int, seed: int, level: float,
    step: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """What guessing the canaries of some runs shows, at the stated level."""
    began = time.monotonic()
    many, runs = _how_many(subject, site), max(1, trials // TRIALS_A_RUN)
    scores, truth = [], []
    for run in range(runs):
        score, present = _run(subject, site, many, derive(seed, "one run", run))
        scores.append(score)
        truth.append(present)
        if step is not None:
            step("many canaries", run + 1, runs)
    claims = [(delta, subject.epsilon(events, delta)) for delta in DELTAS]
    found = _judged(np.concatenate(scores), np.concatenate(truth), claims, level)
    return {
        "canaries": many,
        "runs": runs,
        **found,
        "seconds": round(time.monotonic() - began, 3),
    }


def _run(subject: Subject, site: int, many: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Every canary's score in one run of the repeated rounds, and whether it was there."""
    random = generator(seed, "coins")
    present = random.random(many) < 0.5
    size = subject.space.flat.numel()
    directions = np.linalg.qr(random.standard_normal((size, many)))[0].T
    loud = torch.from_numpy(LOUD * subject.privacy.clip * directions)
    questions = subject.questions()
    signs = {q.round: 1.0 if i % 2 == 0 else -1.0 for i, q in enumerate(questions)}
    marks = Canaries(present, loud.to(subject.space.device, subject.space.problem.dtype), signs)
    context = subject.context(site, subject.host.data(site), seed, marks)
    total = sum(signs[q.round] * (directions @ flat(train(context, q).arrays)) for q in questions)
    return np.asarray(total), present


def _judged(
    scores: np.ndarray, truth: np.ndarray, claims: Sequence[tuple[float, float]], level: float
) -> dict[str, Any]:
    """The number of guesses and the claim that contradict each other most.

    Which ends are guessed is fixed beforehand; all that are tried share the level.
    """
    m = len(scores)
    order = np.argsort(scores, kind="stable")
    tries = len(SHARES) * len(claims)
    best: dict[str, Any] = {}
    reach = 0.0
    for share in SHARES:
        k = min(max(1, round(share * m)), m // 2)
        right = int(truth[order[m - k :]].sum() + (~truth[order[:k]]).sum())
        for delta, claim in claims:
            p = one_run_p_value(m, 2 * k, right, claim, delta)
            # With all guesses right: (1 + e^-epsilon)^-2k at most level.
            each = (level / tries) ** (1 / (2 * k))
            reach = max(reach, math.log(each / (1 - each)))
            if not best or p < best["p"]:
                best = {"p": p, "guesses": 2 * k, "right": right, "delta": delta, "claim": claim}
    best["p"] = min(1.0, tries * best["p"])
    return {**best, "level": level, "reach": reach, "refutes": best["p"] <= level}
