"""DP-SGD (Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar and Zhang 2016), at every site.

Every step draws each example with the same probability (Poisson sampling), clips its gradient, adds
noise to the sum and divides by the expected size of the batch, so that an empty batch is a step
like any other. What leaves the site is computed from these noised gradients alone: examples are
protected from everybody else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from cupola.base.suggest import suggest
from cupola.data.dataset import Dataset
from cupola.data.transform import copy_steps
from cupola.errors import PlanError
from cupola.federation.site import SiteContext
from cupola.nn.adapters import named
from cupola.privacy.device_noise import add_noise_on, device_generator
from cupola.privacy.events import Event, SampledGaussian
from cupola.privacy.noise import Source, source
from cupola.privacy.persample.clipping import Blocks, PerSample, noised_mean
from cupola.privacy.persample.rules import ROUNDING
from cupola.training.choices import Local, Privacy
from cupola.training.mechanisms.base import Gradient, Mechanism
from cupola.training.mechanisms.site_level import clipped_update
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training
    from cupola.training.workspace import Workspace


class DpSgd(Mechanism):
    """Noised gradients of examples that are drawn by chance and clipped one by one."""

    name = "dp-sgd"
    keys = frozenset({"noise_multiplier", "augmentations", "clip_shares"})
    noised_at_site = True
    per_example = True
    sends = sends_alone = "noised updates"

    def check(self, training: Training) -> None:
        if training.local.control_variates:
            raise PlanError(
                f"{self.key}: control variates (SCAFFOLD) are not accounted for; use fedavg"
            )
        if self.privacy.clip_shares:
            blocks_of(training.problem.build(), self.privacy)

    @property
    def stackable(self) -> bool:  # type: ignore[override]
        """Blocks of the clip are those of one model at a time."""
        return not self.privacy.clip_shares

    def answer_events(self, local: Local, n: int, problems: int = 1) -> tuple[Event, ...]:  # noqa: ARG002
        return (SampledGaussian(sampling_rate(n, local), self.noise, private_steps(n, local)),)

    def spends(self, local: Local, n: int, answers: int) -> float:
        """By steps * rate^2, which decides for small rates."""
        return answers * private_steps(n, local) * sampling_rate(n, local) ** 2

    def batches(self, turn: Turn, epochs: int) -> list[np.ndarray]:
        site, local, n = turn.site, turn.local, len(turn.site.data.train)
        steps, rate = private_steps(n, local, epochs), sampling_rate(n, local)
        return drawn_batches(site, turn.question.round, n, rate, steps)

    def gradient(self, turn: Turn) -> Gradient | None:
        return PrivateGradient(turn, self.privacy)

    def warnings(self, training: Training) -> list[str]:  # noqa: ARG002
        return ["the sizes of sites are taken as public: sampling rates are batch size over n"]


# Sampling


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


# Gradients


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


def blocks_of(module: nn.Module, privacy: Privacy) -> Blocks | None:
    """Which trained parameters are clipped apart, and to what; None where all are clipped
    together."""
    shares = privacy.clip_shares
    if not shares:
        return None
    rest, key = 1 - sum(shares.values()), "privacy.clip_shares"
    if rest < -1e-9:
        raise PlanError(f"{key}: the shares together are above 1")
    patterns = list(shares)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    fit = [[i for i, p in enumerate(patterns) if named(name, (p,))] for name in names]
    for i, pattern in enumerate(patterns):
        if not any(i in found for found in fit):
            raise PlanError(
                f"{key}: '{pattern}' names no trained parameter; {suggest(pattern, names)}"
            )
    if twice := [name for name, found in zip(names, fit) if len(found) > 1]:
        raise PlanError(f"{key}: '{twice[0]}' is in two blocks")
    of = tuple(found[0] if found else len(patterns) for found in fit)
    left = [name for name, block in zip(names, of) if block == len(patterns)]
    if left and rest < 1e-9:
        raise PlanError(f"{key}: nothing is left for '{left[0]}', which is in no block")
    whole = {id(p): block for p, block in zip(_trained(module), of)}
    for name, layer in module.named_modules():
        own = {whole[id(p)] for p in layer.parameters(recurse=False) if id(p) in whole}
        if len(own) > 1:
            raise PlanError(f"{key}: '{name}' is one layer; its parameters cannot be clipped apart")
    parts = [*shares.values(), *([rest] if left else [])]
    return Blocks(of, tuple(privacy.clip * math.sqrt(part) for part in parts))


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [p for p in module.parameters() if p.requires_grad]


def per_sample(space: Workspace) -> PerSample:
    """The engine of a worker's model, made once."""
    if "per-sample gradients" not in space.cache:
        space.cache["per-sample gradients"] = PerSample(space.module, space.problem.loss)
    return space.cache["per-sample gradients"]


class PrivateGradient:
    """The noised mean gradient of a batch of one site, in one round."""

    def __init__(self, turn: Turn, privacy: Privacy) -> None:
        site, self.round = turn.site, turn.question.round
        self.space, self.privacy = turn.space, privacy
        self.copies = copies_of(site.data.train, privacy)
        n = len(site.data.train)
        self.expected = sampling_rate(n, turn.local) * n
        self.random: Source = source(site.secret_seed, "privacy noise", self.round, site.index)
        self.there: torch.Generator | None = None
        seed, device = site.secret_seed, self.space.device
        elsewhere = device.type not in ("cpu", "mps")  # MPS has no float64
        if self.space.problem.device_noise and elsewhere and seed is not None:
            self.there = device_generator(device, seed, "noise", self.round, site.index)
        self.engine = per_sample(self.space)
        self.blocks = blocks_of(self.space.module, privacy)
        self.canary = site.canary

    def __call__(self, index: np.ndarray, augment: torch.Generator | None) -> list[Tensor]:
        marks: list[Tensor] = []
        if self.canary is not None:
            index, marks = self.canary.drawn(index, self.round)
        copies = len(self.copies)
        x, y = self._batch(torch.from_numpy(index), augment)
        clip, noise = self.privacy.clip, self.privacy.noise_multiplier
        assert noise is not None, "the coordinator finds the noise before it asks"
        clipped = self.engine.clipped_sum(
            x, y, clip, multiplicity=copies, expected=self.expected, blocks=self.blocks
        )
        flat = torch.cat([s.reshape(-1) for s in clipped.sums])
        for mark in marks:
            (own,), _ = clipped_update([mark], self.privacy)
            flat += own
        if self.there is not None:
            bound = clip * (1 + ROUNDING)
            there = add_noise_on(flat, bound, noise, self.there) / self.expected
            return self.space.split(there.to(self.space.flat))
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
