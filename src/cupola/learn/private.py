"""Privacy at the site: noised gradients of single examples, clipped updates, and what they cost.

dp-sgd: every step draws each example with the same probability, clips its gradient, adds noise to
the sum and divides by the expected size of the batch, so that an empty batch is a step like any
other. What leaves the site is computed from these noised gradients alone.
central, dp-ftrl: the update is clipped here and noised by the coordinator.
distributed: see `shares`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from cupola.data import Dataset
from cupola.data.transform import copy_steps
from cupola.federation import Arrays, Charge, Declined, Question, SiteContext
from cupola.learn.choices import Local, Privacy
from cupola.learn.shares import charge_shares
from cupola.learn.workspace import Workspace, workspace_of
from cupola.privacy.events import Approximate, Event, Gaussian, SampledGaussian
from cupola.privacy.matrix import find as find_matrix
from cupola.privacy.noise import Source, add_noise, source
from cupola.privacy.persample import ROUNDING, PerSample
from cupola.privacy.perturbation import LOST

_NONE = Privacy()


def privacy_of(question: Question) -> Privacy:
    given = question.options.get("privacy")
    return Privacy.model_validate(given) if given else _NONE


def sampling_rate(n: int, local: Local) -> float:
    """Probability of each of n examples to be in a batch of expected size local.batch_size."""
    return 1.0 if local.work == "gradient" else min(1.0, local.batch_size / n)


def private_steps(n: int, local: Local, epochs: int | None = None) -> int:
    """Noised steps of a site of n examples in a round; 'epochs' are rounded up to whole steps."""
    if local.work == "gradient":
        return 1
    if local.work == "batches":
        return local.batches
    return -(-(local.epochs if epochs is None else epochs) * n // local.batch_size)


def drawn_batches(
    site: SiteContext, round: int, n: int, rate: float, steps: int
) -> list[np.ndarray]:
    """Poisson samples: every example is in each batch with probability `rate`, on its own."""
    random = source(site.secret_seed, "privacy batches", round, site.index)
    lots = random.uniforms(steps * n).reshape(steps, n) if n else np.empty((steps, 0))
    return [np.flatnonzero(row) for row in lots < rate]


# What an answer costs


def charge(site: SiteContext, question: Question) -> Charge | None:
    """The cost of a training answer; None if nothing protects it."""
    privacy = privacy_of(question)
    if not privacy.on:
        return None
    n = len(site.data.train)
    if n == 0:
        return Charge(())  # it will give no answer
    if privacy.mechanism == "distributed":
        return charge_shares(site, question, privacy)
    local = Local.model_validate(question.options["local"])
    if privacy.by_coordinator:
        events = _pattern(site, question, privacy) if privacy.mechanism == "dp-ftrl" else ()
        if privacy.mechanism == "central":
            events = (Gaussian(_noise(privacy)),)
        return Charge(events, unit="site", trusts="coordinator")
    outputs = len(workspace_of(site).params[0])
    return Charge(site_events(privacy, local, n, binary_problems(outputs)))


def binary_problems(classes: int | None) -> int:
    """Problems that a convex mechanism solves: one against the rest beyond two classes."""
    return classes if classes is not None and classes > 2 else 1


def site_events(privacy: Privacy, local: Local, n: int, problems: int = 1) -> tuple[Event, ...]:
    """What one answer of a site with n examples does to them."""
    if privacy.mechanism == "output":
        return (Gaussian(_noise(privacy), problems, "replace-one"),)
    if privacy.mechanism == "objective":
        each = (privacy.answer_epsilon or 0.0) / problems
        return (Approximate(each, LOST, problems, "replace-one"),)
    rate, steps = sampling_rate(n, local), private_steps(n, local)
    return (SampledGaussian(rate, _noise(privacy), steps),)


def _noise(privacy: Privacy) -> float:
    assert privacy.noise is not None, "the coordinator finds the noise before it asks"
    return privacy.noise


def _pattern(site: SiteContext, question: Question, privacy: Privacy) -> tuple[Event, ...]:
    """DP-FTRL: one charge covers a site's participations in a period of rounds, if they keep to the
    pattern; a question that breaks it is not answered."""
    pattern = question.options["pattern"]
    asked = [r for r in asked_before(site, question) if r > pattern["after"]]
    if not asked:
        return (ftrl_event(privacy.matrix, _noise(privacy), **pattern),)
    if not np.array_equal(site.recall(question).get("paid", ()), paid_for(question)):
        raise Declined("the participation pattern is not the one that was paid for")
    too_often = len(asked) >= pattern["participations"]
    if too_often or question.round - asked[-1] < pattern["separation"]:
        raise Declined("asked again before the participation pattern allows it")
    return ()


def paid_for(question: Question) -> np.ndarray:
    """What a site paid for with its first answer of a period, as it keeps it."""
    privacy = privacy_of(question)
    facts = [privacy.matrix, privacy.noise, privacy.clip, question.options["pattern"]]
    return np.frombuffer(json.dumps(facts, sort_keys=True).encode(), np.uint8)


def asked_before(site: SiteContext, question: Question) -> list[int]:
    """Rounds in which this site took part, where that matters."""
    return [int(r) for r in site.recall(question).get("asked", ())]


@lru_cache(maxsize=1024)
def ftrl_event(
    matrix: str, noise: float, steps: int, participations: int, separation: int, after: int = 0
) -> Gaussian:
    """A period of DP-FTRL as one Gaussian: the noise of each draw over the sensitivity."""
    del after
    return Gaussian(noise / find_matrix(matrix).sensitivity(steps, participations, separation))


# What an answer is made of


@dataclass(frozen=True)
class Canary:
    """An auditor's example in the place of example `row`, set on a `SiteContext` by hand.

    gradients: by round, flat, instead of the example's own and before clipping; a round without
    one leaves the example out, as if it were not in the data (whose size is public).
    """

    row: int
    gradients: Mapping[int, Tensor]

    def drawn(self, index: np.ndarray, round: int) -> tuple[np.ndarray, list[Tensor]]:
        """A batch without the canary's place, and the gradients of canaries that were drawn."""
        if self.row not in index:
            return index, []
        mark = self.gradients.get(round)
        return index[index != self.row], [] if mark is None else [mark]


def per_sample(space: Workspace) -> PerSample:
    """The engine of a worker's model, made once."""
    if "per-sample gradients" not in space.cache:
        space.cache["per-sample gradients"] = PerSample(space.module, space.problem.loss)
    return space.cache["per-sample gradients"]


class PrivateGradient:
    """The noised mean gradient of a batch of one site, in one round."""

    def __init__(
        self,
        site: SiteContext,
        question: Question,
        local: Local,
        privacy: Privacy,
        space: Workspace,
    ) -> None:
        self.space, self.privacy = space, privacy
        self.copies = copies_of(site.data.train, privacy)
        n = len(site.data.train)
        self.expected = sampling_rate(n, local) * n
        self.random: Source = source(site.secret_seed, "privacy noise", question.round, site.index)
        self.engine = per_sample(space)
        self.canary = site.canary
        self.round = question.round

    def __call__(self, index: np.ndarray, augment: torch.Generator | None) -> list[Tensor]:
        marks: list[Tensor] = []
        if self.canary is not None:
            index, marks = self.canary.drawn(index, self.round)
        copies = len(self.copies)
        x, y = self._batch(torch.from_numpy(index), augment)
        clip, noise = self.privacy.clip, _noise(self.privacy)
        clipped = self.engine.clipped_sum(x, y, clip, multiplicity=copies, expected=self.expected)
        flat = torch.cat([s.reshape(-1) for s in clipped.sums])
        for mark in marks:
            (own,), _ = clipped_update([mark], self.privacy)
            flat += own
        noised = noised_mean(flat.cpu().numpy(), clip, noise, self.expected, self.random)
        return self.space.split(torch.from_numpy(noised).to(self.space.flat))

    def _batch(self, index: Tensor, augment: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """The copies of an example one after the other."""
        made = [self.space.batch(copy, index, augment) for copy in self.copies]
        if len(made) == 1:
            return made[0]
        x = torch.stack([x for x, _ in made], 1).flatten(0, 1)
        return x, made[0][1].repeat_interleave(len(made), 0)


def copies_of(data: Dataset, privacy: Privacy) -> list[Dataset]:
    """The training data as each copy of its examples has it."""
    how = privacy.augmentations
    if isinstance(how, int):
        return [data] if how == 1 else [data.plain(), *[data] * (how - 1)]
    return [replace(data.plain(), transform=copy_steps(entry)) for entry in how]


def noised_mean(
    total: np.ndarray, clip: float, noise: float, expected: float, random: Source
) -> np.ndarray:
    """A sum of gradients, each clipped, with noise, over the expected number of them."""
    return add_noise(total, clip * (1 + ROUNDING), noise, random) / expected


def clipped_update(change: Sequence[Tensor], privacy: Privacy) -> tuple[list[Tensor], Arrays]:
    """A site's update scaled down to the clip, and whether it was below it (a half or minus a
    half) where the clip follows a quantile."""
    norm = float(torch.stack([c.double().norm() for c in change]).norm())
    factor = min(1.0, privacy.clip / norm) if norm > 0 else 1.0
    below: Arrays = {}
    if privacy.quantile is not None:
        below["below"] = np.array(0.5 if norm <= privacy.clip else -0.5)
    if factor == 1:
        return list(change), below
    # In float64: a float32 factor below 1e-38 is rounded by as much as itself.
    return [(c.double() * factor).to(c.dtype) for c in change], below
