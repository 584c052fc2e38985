"""`PerSample`: clipped sums of per-sample gradients of a module, a micro-batch at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.privacy.persample import vmapped
from cupola.privacy.persample.bookkeeping import Share, backward, forward, shares
from cupola.privacy.persample.convolution import weights_channels_last
from cupola.privacy.persample.rules import Room
from cupola.privacy.persample.suitability import trial, unsupported
from cupola.privacy.persample.tape import Layout, NotCoveredError, layout

Loss = Callable[[Tensor, Tensor], Tensor]

CACHE = 8 * 2**20  # bytes that the layers may keep of a micro-batch, so that it stays in the cache
FEWEST, UNROLLED, MOST = 16, 64, 2048  # samples of a micro-batch; loops over time want more
MAPPED = 32  # the same for the fall-back
ROOM = 256 * 2**20  # bytes of per-sample gradients within a micro-batch
SMALLEST_CLIP = 1e-12  # below, squares of float32 norms would vanish


@dataclass(frozen=True)
class Clipped:
    """Clipped gradients of n samples.

    sums: one tensor per trainable parameter, in the order of `module.parameters()`:
        sum_i min(1, clip / |g_i|) g_i, with |g_i| the L2 norm over all parameters together.
    norms: |g_i| before clipping, (n,).
    losses: (n,); with copies the mean over a sample's copies.

    Adding or removing one sample changes `sums` by at most clip in L2 norm, up to rounding (about
    1e-6 of clip in float32). A sample whose gradient is not finite adds nothing.
    """

    sums: list[Tensor]
    norms: Tensor
    losses: Tensor


class PerSample:
    """Per-sample gradients of a module and a loss with one value per sample.

    Reuse it: the first call tries book-keeping on a copy of the module (see `suitability`); where
    that would be wrong, `fallback` says why, and the module runs under `vmap`.

    microbatch: samples at a time; memory grows with it, results differ by rounding only (random
    layers draw anew for each). None chooses by the size of what the layers keep.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, microbatch: int | None = None) -> None:
        if microbatch is not None and microbatch < 1:
            raise PlanError(f"microbatch = {microbatch}: at least 1 sample is needed")
        self.module = module
        self.loss = loss
        self.microbatch = microbatch
        self.fallback: str | None = None
        self._kept = 1
        self._parts = list(module.modules())
        self._states: dict[tuple[bool, ...], Layout] = {}
        self._refuse()

    def _refuse(self) -> None:
        reason = unsupported(self.module)
        if reason is not None:
            raise PlanError(f"DP-SGD needs per-sample gradients: {reason}")

    @torch.enable_grad()  # also where the caller has switched gradients off
    def clipped_sum(self, x: Tensor, y: Tensor, clip: float, *, multiplicity: int = 1) -> Clipped:
        """Clip each sample's gradient to L2 norm `clip` and add up; math.inf clips nothing.

        x, y: (n * multiplicity, ...), the copies of a sample next to each other. Its gradient is
        the mean over its copies, and that is clipped. n = 0 gives zeros.
        """
        n = _count(x, y, clip, multiplicity)
        layout = self._layout(x, y)
        sums: dict[nn.Parameter, Tensor] = {}
        batch = _Batch(self.module, self.loss, layout, clip, multiplicity, sums, Room(ROOM))
        step = self._step(layout)
        if n == 0:
            norms = losses = torch.zeros_like(layout.trained[0]).new_zeros(0)
        elif n <= step:
            norms, losses = self._add(batch, x, y)
        else:
            pieces = zip(x.split(step * multiplicity), y.split(step * multiplicity))
            with weights_channels_last(self.module) if layout.channels_last else nullcontext():
                each = [self._add(batch, a, b) for a, b in pieces]
            norms, losses = (torch.cat(column) for column in zip(*each))
        total = [
            sums[p].contiguous() if p in sums else torch.zeros_like(p).detach()
            for p in layout.trained
        ]
        return Clipped(total, norms, losses)

    def _layout(self, x: Tensor, y: Tensor) -> Layout:
        """The layers to record; found, and book-keeping tried, once for every state of them."""
        state = (
            *(part.training for part in self._parts),
            *(
                p.requires_grad
                for part in self._parts
                for p in part._parameters.values()
                if p is not None
            ),
        )
        if state not in self._states:
            self._refuse()
            found = layout(self.module)
            if not found.trained:
                raise PlanError("the model has no trainable parameters")
            if not len(x):
                return found
            tried = trial(self.module, self.loss, x, y, channels_last=found.channels_last)
            if tried.problem is not None and found.channels_last:  # it may want `view`
                found = replace(found, channels_last=False)
                tried = trial(self.module, self.loss, x, y)
            self.fallback = self.fallback or tried.problem
            self._kept = max(1, tried.kept)
            self._states[state] = found
        return self._states[state]

    def _step(self, found: Layout) -> int:
        """Samples at a time."""
        if self.fallback is not None:
            size = sum(p.numel() * p.element_size() for p in found.trained)
            return min(self.microbatch or MAPPED, max(1, ROOM // size))
        if self.microbatch is not None:
            return self.microbatch
        fit = CACHE // (self._kept * found.trained[0].element_size())
        fewest = UNROLLED if found.cells else FEWEST
        return min(max(1 << max(fit, 1).bit_length() - 1, fewest), MOST)

    def _add(self, batch: _Batch, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Add a micro-batch's clipped gradients to the sums; returns its norms and losses."""
        if self.fallback is None:
            try:
                return batch.by_bookkeeping(x, y)
            except NotCoveredError as reason:  # before anything was added
                self.fallback = str(reason)
        step = self._step(batch.layout) * batch.copies
        each = [batch.by_vmap(a, b) for a, b in zip(x.split(step), y.split(step))]
        norms, losses = (torch.cat(column) for column in zip(*each))
        return norms, losses


@dataclass(frozen=True)
class _Batch:
    """A batch whose clipped sum is being made, micro-batch by micro-batch."""

    module: nn.Module
    loss: Loss
    layout: Layout
    clip: float
    copies: int
    sums: dict[nn.Parameter, Tensor]
    room: Room

    def by_bookkeeping(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        losses, uses = forward(self.module, self.layout, self.loss, x, y)
        groups = backward(losses, uses, self.copies)
        with torch.no_grad():
            losses = losses.detach()
            if self.copies > 1:
                losses = losses.view(-1, self.copies).mean(1)
            norms = self._add(
                lambda chosen: shares(
                    groups if chosen is None else [[p.rows(chosen) for p in g] for g in groups],
                    self.room,
                ),
                losses,
            )
        return norms, losses

    def by_vmap(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x, y = (t.unflatten(0, (-1, self.copies)) for t in (x, y))
        with torch.no_grad():
            found, losses = vmapped.gradients(self.module, self.layout, self.loss, x, y)
            named = dict(self.module.named_parameters())
            norms = self._add(
                lambda chosen: [Share(found if chosen is None else found.rows(chosen), named)],
                losses,
            )
        return norms, losses

    def _add(self, shares_of: Callable[[Tensor | None], list[Share]], losses: Tensor) -> Tensor:
        """Add the clipped sum; shares_of gives the contributions of some samples, or of all."""
        parts = shares_of(None)
        squared = parts[0].squared if parts else torch.zeros_like(losses)
        for part in parts[1:]:
            squared = squared + part.squared
        norms = squared.sqrt()
        if self.clip < math.inf:
            weights = norms.reciprocal().mul_(self.clip).clamp_max_(1)
        else:
            weights = torch.ones_like(norms)
        if not math.isfinite(float(norms.sum())):
            # Zero times infinity is not zero: samples without a finite gradient are left out.
            finite = norms.isfinite()
            parts, weights = shares_of(finite) if finite.any() else [], weights[finite]
        for part in parts:
            part.add(self.sums, weights)
        return norms


def _count(x: Tensor, y: Tensor, clip: float, multiplicity: int) -> int:
    """The number of samples, if the arguments fit together."""
    if not clip >= SMALLEST_CLIP:
        raise PlanError(f"clip = {clip}: the norm to clip to must be positive (at least 1e-12)")
    if multiplicity < 1:
        raise PlanError(f"multiplicity = {multiplicity}: at least 1 copy of a sample is needed")
    if len(x) != len(y) or len(x) % multiplicity:
        raise PlanError(
            f"{len(x)} inputs and {len(y)} targets do not make samples of {multiplicity} copies"
        )
    return len(x) // multiplicity
