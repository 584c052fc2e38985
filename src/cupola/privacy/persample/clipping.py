"""`PerSample`: clipped sums of per-sample gradients of a module, a micro-batch at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.privacy.persample import vmapped
from cupola.privacy.persample.bookkeeping import Share, backward, forward, shares
from cupola.privacy.persample.rules import Room
from cupola.privacy.persample.suitability import trial, unsupported
from cupola.privacy.persample.tape import NotCoveredError

Loss = Callable[[Tensor, Tensor], Tensor]

MICROBATCH = 32  # keeps the activations of images in the cache
WIDE = 2048  # for networks of linear layers, whose samples are small
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
    layers draw anew for each). None chooses by the kind of model.
    """

    def __init__(self, module: nn.Module, loss: Loss, *, microbatch: int | None = None) -> None:
        if microbatch is not None and microbatch < 1:
            raise PlanError(f"microbatch = {microbatch}: at least 1 sample is needed")
        self.module = module
        self.loss = loss
        self.microbatch = microbatch
        self.fallback: str | None = None
        self._tried: set[tuple[bool, ...]] = set()
        self._refuse()

    def _refuse(self) -> None:
        reason = unsupported(self.module)
        if reason is not None:
            raise PlanError(f"DP-SGD needs per-sample gradients: {reason}")

    def clipped_sum(self, x: Tensor, y: Tensor, clip: float, *, multiplicity: int = 1) -> Clipped:
        """Clip each sample's gradient to L2 norm `clip` and add up; math.inf clips nothing.

        x, y: (n * multiplicity, ...), the copies of a sample next to each other. Its gradient is
        the mean over its copies, and that is clipped. n = 0 gives zeros.
        """
        n = _count(x, y, clip, multiplicity)
        self._refuse()
        named = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        sums = {p: torch.zeros_like(p, requires_grad=False) for p in named.values()}
        first = next(iter(sums.values()), None)
        if first is None:
            raise PlanError("the model has no trainable parameters")
        if n == 0:
            none = first.new_zeros(0)
            return Clipped(list(sums.values()), none, none)
        self._try(x, y)
        step = self._step(sum(p.numel() * p.element_size() for p in sums)) * multiplicity
        parts = [
            self._part(a, b, clip, multiplicity, named, sums)
            for a, b in zip(x.split(step), y.split(step))
        ]
        norms, losses = (torch.cat(column) for column in zip(*parts))
        return Clipped(list(sums.values()), norms, losses)

    def _try(self, x: Tensor, y: Tensor) -> None:
        """Find out, once for every mode the layers may be in, whether book-keeping is right."""
        state = tuple(part.training for part in self.module.modules())
        state += tuple(p.requires_grad for p in self.module.parameters())
        if state not in self._tried:
            self.fallback = self.fallback or trial(self.module, self.loss, x, y)
            self._tried.add(state)

    def _step(self, size: int) -> int:
        """Samples at a time; size: bytes of the trainable parameters."""
        if self.fallback is not None:
            most = max(1, ROOM // size)
            return min(self.microbatch or MICROBATCH, most)
        if self.microbatch is not None:
            return self.microbatch
        layers = (
            m for m in self.module.modules() if next(m.parameters(recurse=False), None) is not None
        )
        return WIDE if all(isinstance(m, nn.Linear) for m in layers) else MICROBATCH

    def _part(
        self,
        x: Tensor,
        y: Tensor,
        clip: float,
        copies: int,
        named: dict[str, nn.Parameter],
        sums: dict[nn.Parameter, Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Norms and losses of a micro-batch; its clipped gradients are added to `sums`."""
        if self.fallback is None:
            try:
                losses, uses = forward(self.module, self.loss, x, y)
                groups = backward(losses, uses, copies)
            except NotCoveredError as reason:
                self.fallback = str(reason)
        with torch.no_grad():
            if self.fallback is not None:
                rows = (t.unflatten(0, (-1, copies)) for t in (x, y))
                found, losses = vmapped.gradients(self.module, self.loss, *rows)
                parts = [Share(found, named)]
            else:
                losses = losses.detach().view(-1, copies).mean(1)
                parts = shares(groups, Room(ROOM))
            squared = losses.new_zeros(losses.shape)
            for part in parts:
                squared = squared + part.squared
            norms = squared.sqrt()
            weights = (clip / norms).clamp_max(1) if clip < math.inf else torch.ones_like(norms)
            finite = norms.isfinite()
            if not bool(finite.all()):  # nothing times infinity is not nothing: leave such rows out
                weights = weights[finite]
                if self.fallback is None:
                    chosen = [[part.rows(finite) for part in group] for group in groups]
                    parts = shares(chosen, Room(ROOM))
                else:
                    kept = {name: g[finite] for name, g in found.gradients.items()}
                    parts = [Share(vmapped.Materialised(kept), named)]
            for part in parts:
                part.add(sums, weights)
        return norms, losses


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
