"""Sites that train together in a round, and their batches laid out for stacks of models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cupola.federation.message import Question
from cupola.federation.site import SiteContext
from cupola.training.batched.samples import samples_of
from cupola.training.batches import Work
from cupola.training.choices import Local
from cupola.training.mechanisms.base import Mechanism
from cupola.training.methods.accumulation import accumulation_coefficients
from cupola.training.optimizers import effective_steps
from cupola.training.workspace import Workspace

GATHER_BYTES = 64 << 20  # batches of a whole round are laid out at once up to this size


@dataclass
class Team:
    """Sites with their work in a round, most steps first.

    loss: each site's at the received model, where it is asked for; else empty.
    """

    sites: list[SiteContext]
    work: list[Work]
    local: Local
    question: Question
    mechanism: Mechanism
    loss: list[float]

    def __len__(self) -> int:
        return len(self.work)

    @property
    def lr(self) -> float:
        return self.question.options["lr"]

    @cached_property
    def steps(self) -> list[int]:
        return [w.steps for w in self.work]

    @cached_property
    def weight(self) -> np.ndarray:
        """Of each site's answer."""
        by_samples = self.local.weighting == "samples"
        return np.array([w.used if by_samples else 1.0 for w in self.work], float)

    def effective(self) -> np.ndarray:
        """FedNova's effective number of steps of each site."""
        return np.array([effective_steps(self.local, s, self.lr) for s in self.steps])

    def answer_weights(self) -> np.ndarray:
        """Each site's weight, divided by its effective steps where changes are normalised."""
        if self.local.send == "normalised":
            return self.weight / self.effective()
        return self.weight

    def part(self, start: int, stop: int) -> Team:
        """Some of the sites; they stay sorted."""
        own = slice(start, stop)
        return replace(self, sites=self.sites[own], work=self.work[own], loss=self.loss[own])


@dataclass
class Cohort(Team):
    """A team with all its batches as rectangles.

    x, y: all samples. index (steps, sites, batch): places in x; share (steps, sites, batch):
    1 / size of the batch, 0 where a batch is padded. active[t]: how many sites make step t.
    coefficient (sites, steps): of each gradient in an accumulated answer. halves: a half or minus
    a half for every update below or above the clip, written by the form that clips.
    """

    x: Tensor
    y: Tensor
    index: Tensor
    share: Tensor
    active: list[int]
    coefficient: np.ndarray
    halves: list[float] = field(default_factory=list)

    def part(self, start: int, stop: int) -> Cohort:
        longest = self.steps[start]
        return replace(
            self,
            sites=self.sites[start:stop],
            work=self.work[start:stop],
            loss=self.loss[start:stop],
            index=self.index[:longest, start:stop],
            share=self.share[:longest, start:stop],
            active=[min(a, stop) - start for a in self.active[:longest]],
            coefficient=self.coefficient[start:stop, :longest],
            halves=[],
        )

    def batches(self, active: Sequence[int]) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Inputs, targets and shares of every step, for its first `active` sites."""
        size = self.x[0].numel() * self.x.element_size() * self.index.numel()
        if size > GATHER_BYTES:
            for t, rows in enumerate(active):
                place = self.index[t, :rows]
                yield self.x[place], self.y[place], self.share[t, :rows]
            return
        place = self.index.reshape(-1)
        x = self.x.index_select(0, place).view(*self.index.shape, *self.x.shape[1:])
        y = self.y.index_select(0, place).view(*self.index.shape, *self.y.shape[1:])
        steps, width = zip(x.unbind(), y.unbind(), self.share.unbind()), len(self)
        for rows, batch in zip(active, steps):
            yield batch if rows == width else (batch[0][:rows], batch[1][:rows], batch[2][:rows])


def gather(space: Workspace, team: Team) -> Cohort:
    """Lay out the batches of these sites as rectangles."""
    sites, work, local, steps = team.sites, team.work, team.local, team.steps
    x, y, first = samples_of(space, [site.data.train for site in sites])
    lengths = np.concatenate([w.sizes for w in work])
    places = np.concatenate([w.order for w in work])
    places += np.repeat(first, [len(w.order) for w in work])
    longest, widest = steps[0], max(1, int(lengths.max()))  # private batches may be empty
    made = np.array(steps)
    step = np.arange(len(lengths)) - np.repeat(np.cumsum(made) - made, made)
    rows = np.repeat(np.arange(len(sites)), made) + len(sites) * step
    columns = np.arange(len(places)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    cells = np.repeat(rows, lengths) * widest + columns
    index = np.zeros(len(sites) * longest * widest, np.int64)
    share = np.zeros(len(sites) * longest * widest)
    index[cells] = places
    share[cells] = np.repeat(1 / np.maximum(lengths, 1), lengths)
    shape = (longest, len(sites), widest)
    makes = np.arange(longest) < made[:, None]
    coefficient = makes.astype(float)
    if local.accumulation == "weighted":
        for k, count in enumerate(steps):
            coefficient[k, :count] = accumulation_coefficients(local, count)
    return Cohort(
        **{f.name: getattr(team, f.name) for f in fields(Team)},
        x=x,
        y=y,
        index=torch.from_numpy(index.reshape(shape)).to(space.device),
        share=torch.from_numpy(share.reshape(shape)).to(space.device, space.problem.dtype),
        active=makes.sum(0).tolist(),
        coefficient=coefficient,
    )
