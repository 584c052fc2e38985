"""Which samples a site uses in which order: its share of a round's work.

Written for many sites at once; one site is a list of one, so that both ways of running draw alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from cupola.base.randomness import permutation, permutations, uniforms
from cupola.errors import PlanError
from cupola.federation.message import Question
from cupola.federation.site import SiteContext
from cupola.training.choices import Local, Participation
from cupola.training.mechanisms import mechanism_for
from cupola.training.mechanisms.base import Mechanism
from cupola.training.turn import Turn
from cupola.training.workspace import probe_inputs

if TYPE_CHECKING:
    from cupola.training.loop import Training


@dataclass
class Work:
    """The mini-batches of one site in one round, as indices into its training data.

    order: the samples of all batches, one after the other; sizes: of each batch. used: samples
    that count for its weight. cursor: batches taken so far from the persistent iterator, to be
    kept at the site. declined: why there is no work. fixed: `used` does not depend on the batches,
    whose sizes are private.
    """

    order: np.ndarray
    sizes: np.ndarray
    used: int
    cursor: int = 0
    declined: str | None = None
    fixed: bool = False

    @property
    def steps(self) -> int:
        return len(self.sizes)

    @property
    def batches(self) -> list[np.ndarray]:
        """The batches themselves."""
        return np.split(self.order, np.cumsum(self.sizes)[:-1]) if self.steps else []

    def cut(self, steps: int) -> None:
        """Keep the first steps only."""
        self.sizes = self.sizes[:steps]
        held = int(self.sizes.sum())
        self.used = self.used if self.fixed else held
        self.order = self.order[:held]


def share_out(sites: Sequence[SiteContext], question: Question, local: Local) -> list[Work]:
    """Every site's work in this round."""
    seed = sites[0].seed if sites[0].seed is not None else secrets.randbits(62)
    numbers = [site.index for site in sites]
    sizes = [len(site.data.train) for site in sites]
    epochs, parts, declined = _who_works(seed, question, local, numbers)
    mechanism = mechanism_for(question)
    if mechanism.per_example:
        work = [
            _poisson(mechanism, Turn(site, question, local), many)
            for site, many in zip(sites, epochs)
        ]
    elif local.work == "epochs":
        work = _epochs(seed, question.round, local, numbers, sizes, epochs)
    elif local.work == "batches":
        cursors = [int(site.recall(question).get("cursor", 0)) for site in sites]
        work = [
            _next_batches(seed, local, site, size, cursor, _some(local.batches, part))
            for site, size, cursor, part in zip(numbers, sizes, cursors, parts)
        ]
    else:
        work = [Work(np.arange(size), np.array([size]), size) for size in sizes]
    cut = mechanism.per_example and local.work == "batches"
    if cut or (local.work == "epochs" and local.epochs == 1):
        for item, part in zip(work, parts):
            if part is not None and item.steps:
                item.cut(_some(item.steps, part))
    for item, size, reason in zip(work, sizes, declined):
        item.declined = reason or (None if size else "no samples")
    return work


def require_batches(training: Training, sizes: np.ndarray) -> None:
    """Refuse batches of a single sample where a layer needs several (batch normalisation)."""
    # Asked first, for every plan: it also refuses, in words, a model that cannot take the data.
    local, mixes = training.local, training.problem.properties.batch_dependent
    alone = [site for site, n in enumerate(sizes.tolist()) if mixes and 1 in _sizes_of(n, local)]
    if not alone:
        return
    module = training.problem.build().to(training.problem.dtype)
    try:
        module(probe_inputs(training.problem, 1))
    except ValueError:
        raise PlanError(
            f"layer '{mixes[0]}' needs at least two samples in a batch, and site {alone[0]} would "
            "train on a batch of one: choose another local.batch_size, or local.drop_last = true"
        ) from None


def _sizes_of(n: int, local: Local) -> set[int]:
    """Sizes that the batches of a site of n samples have."""
    if local.work == "epochs":
        return set(_cut(_used(n, local), local.batch_size, 1).tolist())
    return {n if local.work == "gradient" else min(n, local.batch_size)}


def declined_by(sites: Sequence[SiteContext], question: Question, local: Local) -> list[str | None]:
    """Why each of these sites would give no answer in this round; None if it would."""
    _, _, declined = _who_works(sites[0].seed or 0, question, local, [s.index for s in sites])
    return [
        reason or (None if len(site.data.train) else "no samples")
        for site, reason in zip(sites, declined)
    ]


def _some(whole: int, part: float | None) -> int:
    """1 .. whole-1, uniform in `part` from [0, 1); all where there is no part."""
    return whole if part is None else 1 + int(part * (whole - 1))


def _who_works(
    seed: int, question: Question, local: Local, sites: list[int]
) -> tuple[list[int], list[float | None], list[str | None]]:
    """Epochs of each site, a straggler's part of the work, and why a site gives no answer."""
    epochs: list[int] = [local.epochs] * len(sites)
    parts: list[float | None] = [None] * len(sites)
    declined: list[str | None] = [None] * len(sites)
    if "participation" not in question.options:
        return epochs, parts, declined
    choice = Participation.model_validate(question.options["participation"])
    draw = question.options.get("draw", question.round)
    if choice.stragglers:
        lots = uniforms(seed, "stragglers", draw, sites, 2)
        for i, (lot, part) in enumerate(lots):
            if lot < choice.stragglers:
                if choice.keep_stragglers:
                    epochs[i], parts[i] = _some(local.epochs, part), float(part)
                else:
                    declined[i] = "straggler"
    if choice.dropouts:
        for i, lot in enumerate(uniforms(seed, "dropouts", draw, sites)[:, 0]):
            if lot < choice.dropouts:
                declined[i] = "dropped out"
    return epochs, parts, declined


def _epochs(
    seed: int, round: int, local: Local, sites: list[int], sizes: list[int], epochs: list[int]
) -> list[Work]:
    orders: list[list[np.ndarray]] = [[] for _ in sites]
    used = [_used(n, local) for n in sizes]
    for epoch in range(max(epochs)):
        shuffled = permutations(seed, f"shuffle {epoch}", round, sites, sizes)
        for own, order, many, n in zip(orders, shuffled, epochs, used):
            if epoch < many:
                own.append(order[:n])
    return [
        Work(own[0] if many == 1 else np.concatenate(own), _cut(n, local.batch_size, many), used=n)
        for own, many, n in zip(orders, epochs, used)
    ]


def _poisson(mechanism: Mechanism, turn: Turn, epochs: int) -> Work:
    """Batches for private steps; how many examples each holds must not show in the weight."""
    n = len(turn.site.data.train)
    if n == 0:
        return Work(np.empty(0, np.int64), np.empty(0, np.int64), 0)
    batches = mechanism.batches(turn, epochs)
    return Work(np.concatenate(batches), np.array([len(b) for b in batches]), n, fixed=True)


@lru_cache(maxsize=65536)
def _cut(n: int, size: int, epochs: int) -> np.ndarray:
    """Sizes of the batches of so many epochs over n samples."""
    whole, rest = divmod(n, size)
    return np.array(([size] * whole + [rest] * (rest > 0)) * epochs, np.int64)


def _used(n: int, local: Local) -> int:
    """Samples of an epoch; a site smaller than a batch still gives one short batch."""
    if local.drop_last and n > local.batch_size:
        return n - n % local.batch_size
    return n


def _next_batches(seed: int, local: Local, site: int, n: int, cursor: int, many: int) -> Work:
    """The next `many` batches of an endless iterator: shuffled epochs without their short rest."""
    if n == 0:
        return Work(np.empty(0, np.int64), np.empty(0, np.int64), 0, cursor)
    size = min(local.batch_size, n)
    per_epoch = n // size
    batches = []
    order, shuffled = np.empty(0, np.int64), -1
    for number in range(cursor, cursor + many):
        epoch, place = divmod(number, per_epoch)
        if epoch != shuffled:
            order, shuffled = permutation(seed, "iterator", epoch, site, n), epoch
        batches.append(order[place * size : (place + 1) * size])
    return Work(np.concatenate(batches), np.full(many, size), size * many, cursor + many)
