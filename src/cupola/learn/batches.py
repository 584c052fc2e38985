"""Which samples a site uses in which order: its share of a round's work.

Written for many sites at once; one site is a list of one, so that both ways of running draw alike.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cupola.federation import Question, SiteContext
from cupola.federation.randomness import permutation, permutations, uniforms
from cupola.learn.choices import Local, Participation


@dataclass
class Work:
    """The mini-batches of one site in one round, as indices into its training data.

    used: samples that count for its weight. epochs: after straggling. cursor: batches taken so
    far from the persistent iterator, to be kept at the site. declined: why there is no work.
    """

    batches: list[np.ndarray]
    used: int
    cursor: int = 0
    declined: str | None = None


def share_out(sites: Sequence[SiteContext], question: Question, local: Local) -> list[Work]:
    """Every site's work in this round."""
    seed = sites[0].seed if sites[0].seed is not None else secrets.randbits(62)
    numbers = [site.index for site in sites]
    sizes = [len(site.data.train) for site in sites]
    epochs, declined = _who_works(seed, question, local, numbers)
    if local.work == "epochs":
        work = _epochs(seed, question.round, local, numbers, sizes, epochs)
    elif local.work == "batches":
        cursors = [int(site.recall(question).get("cursor", 0)) for site in sites]
        work = [
            _next_batches(seed, local, site, size, cursor)
            for site, size, cursor in zip(numbers, sizes, cursors)
        ]
    else:
        work = [Work([np.arange(size)], size) for size in sizes]
    for item, size, reason in zip(work, sizes, declined):
        item.declined = reason or (None if size else "no samples")
    return work


def _who_works(
    seed: int, question: Question, local: Local, sites: list[int]
) -> tuple[list[int], list[str | None]]:
    """Local epochs of each site and why it gives no answer, in a simulation with such sites."""
    choice = Participation.model_validate(question.options.get("participation", {"kind": "all"}))
    epochs: list[int] = [local.epochs] * len(sites)
    declined: list[str | None] = [None] * len(sites)
    draw = question.options.get("draw", question.round)
    if choice.stragglers:
        lots = uniforms(seed, "stragglers", draw, sites, 2)
        for i, (lot, part) in enumerate(lots):
            if lot < choice.stragglers:
                if choice.keep_stragglers:
                    epochs[i] = 1 + int(part * (local.epochs - 1))
                else:
                    declined[i] = "straggler"
    if choice.dropouts:
        for i, lot in enumerate(uniforms(seed, "dropouts", draw, sites)[:, 0]):
            if lot < choice.dropouts:
                declined[i] = "dropped out"
    return epochs, declined


def _epochs(
    seed: int, round: int, local: Local, sites: list[int], sizes: list[int], epochs: list[int]
) -> list[Work]:
    size = local.batch_size
    work: list[Work] = [Work([], _used(n, local)) for n in sizes]
    for epoch in range(max(epochs)):
        orders = permutations(seed, f"shuffle {epoch}", round, sites, sizes)
        for item, order, many in zip(work, orders, epochs):
            if epoch < many:
                order = order[: item.used]
                item.batches += [order[i : i + size] for i in range(0, item.used, size)]
    return work


def _used(n: int, local: Local) -> int:
    """Samples of an epoch; a site smaller than a batch still gives one short batch."""
    if local.drop_last and n > local.batch_size:
        return n - n % local.batch_size
    return n


def _next_batches(seed: int, local: Local, site: int, n: int, cursor: int) -> Work:
    """The next tau batches of an endless iterator: shuffled epochs without their short rest."""
    if n == 0:
        return Work([], 0, cursor)
    size = min(local.batch_size, n)
    per_epoch = n // size
    batches = []
    order, shuffled = np.empty(0, np.int64), -1
    for number in range(cursor, cursor + local.batches):
        epoch, place = divmod(number, per_epoch)
        if epoch != shuffled:
            order, shuffled = permutation(seed, "iterator", epoch, site, n), epoch
        batches.append(order[place * size : (place + 1) * size])
    return Work(batches, size * local.batches, cursor + local.batches)
