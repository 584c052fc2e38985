"""`PerSample`: clipped sums of per-sample gradients of a module, a micro-batch at a time.

The bound on what one sample adds is a theorem about this code, not about its formulas: see "The
clip, proven" in docs/privacy.md. It rests on two things that are done here: every micro-batch has
one shape, whatever was drawn (filled up with samples of weight 0), and a sample's weight is found
from an upper bound of its norm, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.privacy.noise import Source, add_noise
from cupola.privacy.persample import vmapped
from cupola.privacy.persample.batch_independence import DRAWS, LANES, depends_on_company
from cupola.privacy.persample.bookkeeping import Share, backward, forward, shares
from cupola.privacy.persample.convolution import prefers_channels_last, weights_channels_last
from cupola.privacy.persample.rules import ROUNDING, Materialised, Room, Sums
from cupola.privacy.persample.tape import Layout, layout
from cupola.privacy.persample.trial import (
    calm,
    chance,
    drawn_like,
    redrawn,
    trial,
    unsupported,
)

Loss = Callable[[Tensor, Tensor], Tensor]

MOST_SAMPLES = 2**18  # of a batch, up to which ROUNDING is enough
SMALLEST_CLIP = 1e-12  # below, squares of float32 norms would vanish
CACHE = 8 * 2**20  # bytes that the layers may keep of a micro-batch, so that it stays in the cache
FEWEST, UNROLLED, MOST = 16, 64, 2048  # samples of a micro-batch; loops over time want more
MAPPED = 32  # the same for the fall-back
ROOM = 256 * 2**20  # bytes of per-sample gradients within a micro-batch
USUAL = 64  # samples of a micro-batch, where nobody says how many to expect


@dataclass(frozen=True)
class Clipped:
    """Clipped gradients of n samples.

    sums: one tensor, float64, per trainable parameter, in the order of `module.parameters()`:
        sum_i min(1, clip / |g_i|) g_i, with |g_i| the L2 norm over all parameters together.
    norms: |g_i| before clipping, (n,), float64, rounded up (by some 1e-5 for float32).
    losses: (n,); with copies the mean over a sample's copies.

    Adding or removing one sample changes `sums` by at most clip (1 + ROUNDING) in L2 norm, whatever
    the weights and the data. A sample whose gradient is not finite adds nothing.
    """

    sums: list[Tensor]
    norms: Tensor
    losses: Tensor


def noised_mean(
    total: np.ndarray, clip: float, noise: float, expected: float, random: Source
) -> np.ndarray:
    """A sum of gradients, each clipped, with noise, over the expected number of them."""
    return add_noise(total, clip * (1 + ROUNDING), noise, random) / expected


@dataclass(frozen=True)
class Blocks:
    """Parameters that are clipped apart (McMahan, Ramage, Talwar and Zhang 2018, "per-layer").

    of: the block of every trainable parameter, in the order of `module.parameters()`; clips: of
    each block. One sample then moves the sum by the root of the sum of their squares at most.
    """

    of: tuple[int, ...]
    clips: tuple[float, ...]

    def split(self, parts: list[Share], trained: list[nn.Parameter]) -> list[list[Share]]:
        """The shares of each block."""
        place = dict(zip(trained, self.of, strict=True))
        found: list[list[Share]] = [[] for _ in self.clips]
        for part in parts:
            own = {n: place[p] for n, p in part.parameters.items() if p in place}
            blocks = set(own.values())
            if len(blocks) > 1 and isinstance(part.contribution, Materialised):  # of the fall-back
                for block in blocks:
                    names = [n for n in part.contribution.gradients if own[n] == block]
                    some = Materialised({n: part.contribution.gradients[n] for n in names})
                    found[block].append(Share(some, {n: part.parameters[n] for n in names}))
            elif len(blocks) > 1:
                raise PlanError("one layer's parameters are in two blocks of the clip")
            else:
                found[blocks.pop()].append(part)
        return found


@dataclass(frozen=True)
class Form:
    """How a module's batches are computed; public facts alone decide.

    samples: of every micro-batch. fallback: why the module runs under `vmap`, if it does.
    alone: why samples go one by one, if they do.
    """

    layout: Layout
    samples: int
    fallback: str | None = None
    alone: str | None = None


class PerSample:
    """Per-sample gradients of a module and a loss with one value per sample.

    Reuse it: the first call tries book-keeping on a copy of the module (see `trial`); where
    that would be wrong, the module runs under `vmap`. Then it is tried whether the bits of a sample
    depend on its company (see `company`); where they do, samples go one by one. `form` tells.

    microbatch: samples at a time; memory grows with it, results differ by rounding only (random
    layers draw anew for each). None chooses by the size of what the layers keep. factors: whether
    the clipped sum may be made without the samples' own numbers, in float64 (by default on CPUs).
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        *,
        microbatch: int | None = None,
        factors: bool | None = None,
    ) -> None:
        if microbatch is not None and microbatch < 1:
            raise PlanError(f"microbatch = {microbatch}: at least 1 sample is needed")
        self.module = module
        self.loss = loss
        self.microbatch = microbatch
        self.form: Form | None = None
        self._factors = factors
        self._parts = list(module.modules())
        self._largest: dict[tuple[object, ...], Form] = {}
        self._forms: dict[tuple[object, ...], Form] = {}
        self._refuse()

    @property
    def fallback(self) -> str | None:
        """Why the module runs under `vmap`; None before the first batch, or if it does not."""
        return None if self.form is None else self.form.fallback

    def _refuse(self) -> None:
        reason = unsupported(self.module)
        if reason is not None:
            raise PlanError(f"DP-SGD needs per-sample gradients: {reason}")

    @torch.enable_grad()  # also where the caller has switched gradients off
    def clipped_sum(
        self,
        x: Tensor,
        y: Tensor,
        clip: float,
        *,
        multiplicity: int = 1,
        expected: float | None = None,
        blocks: Blocks | None = None,
    ) -> Clipped:
        """Clip each sample's gradient to L2 norm `clip` and add up; math.inf clips nothing.

        x, y: (n * multiplicity, ...), the copies of a sample next to each other. Its gradient is
        the mean over its copies, and that is clipped. n = 0 gives zeros. expected: samples of a
        batch on average, where n is drawn; micro-batches are made to fit it. blocks: clipped apart,
        each to its own norm in place of `clip`.
        """
        for own in () if blocks is None else blocks.clips:
            _count(x, y, own, multiplicity, expected)
        n = _count(x, y, clip, multiplicity, expected)
        x, y = x.detach(), y.detach()
        full = _without_autocast(x.device.type)  # the clip is proven for no fewer bits
        with full:
            form = self._form(x, y, multiplicity, expected)
        sums = Sums()
        batch = self._batch(self.module, form, clip, multiplicity, sums)
        batch = batch if blocks is None else replace(batch, blocks=blocks)
        step = form.samples * multiplicity
        norms = losses = torch.zeros(0, dtype=torch.float64, device=x.device)
        if n:
            pieces = zip(x.split(step), y.split(step))
            with full, _in_order(self.module, form):
                each = [batch.add(filled(a, step), filled(b, step), len(a)) for a, b in pieces]
            norms, losses = (torch.cat(column) for column in zip(*each))
        with torch.no_grad():
            return Clipped(sums.all(form.layout.trained), norms, losses)

    def _batch(self, module: nn.Module, form: Form, clip: float, copies: int, sums: Sums) -> _Batch:
        room = Room(ROOM) if self._has_factors(form) else None
        return _Batch(module, self.loss, form, clip, copies, sums, room)

    def _has_factors(self, form: Form) -> bool:
        if self._factors is not None:
            return self._factors
        return form.layout.trained[0].device.type == "cpu"

    # How batches are computed

    def _form(self, x: Tensor, y: Tensor, copies: int, expected: float | None) -> Form:
        """Found, and tried, once for every state of the layers, shape and number of samples."""
        training = [part.training for part in self._parts]
        trained = [p.requires_grad for p in self.module.parameters()]
        shapes = [(t.shape[1:], t.dtype) for t in (x, y)]
        key = (*training, *trained, *shapes, copies, torch.get_num_threads())
        if key not in self._largest:
            self._refuse()
            self._largest[key] = self._tried(x, y, copies)
        largest = self._largest[key]
        samples = largest.samples
        if self.microbatch is None:
            samples = _fitting(samples, expected, UNROLLED if largest.layout.cells else FEWEST)
        if (*key, samples) not in self._forms:
            form = replace(largest, samples=samples)
            self._forms[(*key, samples)] = self._sound(form, largest.samples, x, y, copies)
        self.form = self._forms[(*key, samples)]
        return self.form

    def _tried(self, x: Tensor, y: Tensor, copies: int) -> Form:
        """By rules or by `vmap`, with the largest micro-batches."""
        found = replace(layout(self.module), channels_last=prefers_channels_last(self.module))
        _require(found)
        tried = trial(self.module, self.loss, x, y, channels_last=found.channels_last)
        if tried.problem is not None and found.channels_last:  # it may want `view`
            found = replace(found, channels_last=False)
            tried = trial(self.module, self.loss, x, y)
        form = Form(found, 1, tried.problem)
        return replace(form, samples=self._most(form, max(1, tried.kept), copies))

    def _sound(self, form: Form, most: int, x: Tensor, y: Tensor, copies: int) -> Form:
        """This form, or one near it, in which a sample's bits do not depend on its company."""
        reason = self._company(form, x, y, copies)
        if reason is None:
            return form
        even = -(-form.samples // LANES) * LANES * torch.get_num_threads()
        if even <= max(most, 2 * LANES) and self.microbatch is None:
            wider = replace(form, samples=even)
            if self._company(wider, x, y, copies) is None:
                return wider
        alone = replace(form, samples=1, alone=reason)
        again = self._company(alone, x, y, copies)
        if again is not None and again != DRAWS:
            raise PlanError(f"DP-SGD is refused on this machine: of a sample by itself, {again}")
        return alone

    def self_test(
        self,
        x: Tensor,
        y: Tensor,
        *,
        multiplicity: int = 1,
        expected: float | None = None,
        times: int = 8,
    ) -> tuple[Form, str | None]:
        """The form of such batches, and what is wrong with it: whether the bits of a sample depend
        on its company, tried with other random weights and samples than at the first batch."""
        form = self._form(x, y, multiplicity, expected)
        for seed in range(1, times + 1):
            reason = self._company(form, x, y, multiplicity, seed)
            if reason is not None and not (reason == DRAWS and form.samples == 1):
                return form, reason
        return form, None

    def _company(self, form: Form, x: Tensor, y: Tensor, copies: int, seed: int = 0) -> str | None:
        """Try micro-batches of this form on a copy with random weights and samples."""
        with chance(seed):
            module = redrawn(self.module)
            for part in module.modules():
                calm(part)
            own = replace(
                form, layout=replace(layout(module), channels_last=form.layout.channels_last)
            )
            batch = self._batch(module, own, 1.0, copies, Sums())
            rows = form.samples * copies
            x, y = drawn_like(module, x, y, rows, wide=True)

            def numbers(x: Tensor, y: Tensor) -> list[Tensor]:
                return batch.numbers(filled(x, rows), filled(y, rows))

            with _in_order(module, own):
                return depends_on_company(numbers, x, y, copies)

    def _most(self, form: Form, kept: int, copies: int) -> int:
        """Samples at a time."""
        size = sum(p.numel() * p.element_size() for p in form.layout.trained)
        if form.fallback is not None:
            return min(self.microbatch or MAPPED, max(1, ROOM // size))
        if self.microbatch is not None:
            return self.microbatch
        fit = CACHE // (kept * copies * form.layout.trained[0].element_size())
        fewest = UNROLLED if form.layout.cells else FEWEST
        most = min(max(1 << max(fit, 1).bit_length() - 1, fewest), MOST)
        return most if self._has_factors(form) else min(most, max(1, ROOM // size))


def _require(found: Layout) -> None:
    if not found.trained:
        raise PlanError("the model has no trainable parameters")
    for p in found.trained:
        if p.dtype not in (torch.float32, torch.float64):
            raise PlanError(f"DP-SGD's clip is proven for float32 and float64, not {p.dtype}")
        if p.device.type == "mps":
            raise PlanError("DP-SGD adds up in float64, which 'mps' has not; use device = 'cpu'")


def _fitting(most: int, expected: float | None, fewest: int) -> int:
    """Samples of a micro-batch, at most so many: what is filled up in vain should be little."""
    if expected is None:
        return min(most, USUAL)
    whole = -(-math.ceil(expected + 4 * math.sqrt(expected)) // LANES) * LANES  # nearly all batches
    eighth = 1 << max(1, int(expected / 8)).bit_length() - 1
    return whole if whole <= most else min(most, max(fewest, eighth))


def filled(rows: Tensor, size: int) -> Tensor:
    """rows with the last one repeated up to this number, in memory of its own and in one order,
    whatever the order of the rows: kernels are chosen by it, too."""
    grey = rows.dim() == 4 and rows.shape[1] == 1  # channels last by a word; CNNs are faster then
    order = torch.channels_last if grey else torch.contiguous_format
    made = torch.empty(
        (size, *rows.shape[1:]), dtype=rows.dtype, device=rows.device, memory_format=order
    )
    made[: len(rows)] = rows
    made[len(rows) :] = rows[-1]
    return made


def _in_order(module: nn.Module, form: Form) -> AbstractContextManager[None]:
    """Weights as the images of this form want them."""
    return weights_channels_last(module) if form.layout.channels_last else nullcontext()


@dataclass(frozen=True)
class _Batch:
    """A batch whose clipped sum is being made, micro-batch by micro-batch."""

    module: nn.Module
    loss: Loss
    form: Form
    clip: float
    copies: int
    sums: Sums
    room: Room | None
    blocks: Blocks | None = None

    def add(self, x: Tensor, y: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Add the clipped gradients of the first so many rows; returns their norms and losses."""
        n = rows // self.copies
        losses, _, parts = self._shares(x, y)
        with torch.no_grad():
            norms = _norms(parts, losses)
            finite = norms.isfinite()  # of a sample as a whole: else none of its blocks counts
            blocks, trained = self.blocks, self.form.layout.trained
            apart = [parts] if blocks is None else blocks.split(parts, trained)
            for own, clip in zip(apart, (self.clip,) if blocks is None else blocks.clips):
                size = norms if blocks is None else _norms(own, losses)
                weights = torch.where(finite, (clip / size).clamp_max(1), 0)
                weights[n:] = 0
                for part in own:
                    part.add(self.sums, weights)
        return norms[:n], losses[:n]

    def numbers(self, x: Tensor, y: Tensor) -> list[Tensor]:
        """All that is computed from single samples, (samples, ...) each."""
        losses, kept, parts = self._shares(x, y)
        made = [t for part in parts for t in part.contribution.numbers]
        return [losses, *kept, *made, _norms(parts, losses)]

    def _shares(self, x: Tensor, y: Tensor) -> tuple[Tensor, list[Tensor], list[Share]]:
        """Losses (n,), what layers kept of samples and their gradients, and contributions."""
        if self.form.fallback is not None:
            x, y = (t.unflatten(0, (-1, self.copies)) for t in (x, y))
            with torch.no_grad():
                found, losses = vmapped.gradients(self.module, self.form.layout, self.loss, x, y)
            return losses, [], [Share(found, dict(self.module.named_parameters()))]
        losses, uses = forward(self.module, self.form.layout, self.loss, x, y)
        groups = backward(losses, uses, self.copies)
        with torch.no_grad():
            losses = losses.detach()
            if self.copies > 1:
                losses = losses.view(-1, self.copies).mean(1)
            kept = [t for group in groups for part in group for t in (*part.kept, part.g)]
            return losses, kept, shares(groups, self.room)


def _norms(parts: list[Share], losses: Tensor) -> Tensor:
    """Upper bounds (n,) of the norms over all parameters, float64."""
    squared = torch.zeros_like(losses, dtype=torch.float64)
    for part in parts:
        squared = squared + part.squared
    return squared.sqrt().mul_(1 + 2.0**-40)


def _without_autocast(device: str) -> AbstractContextManager[object]:
    """torch's own switch, which not every device has: where there is none, nothing is to switch."""
    if not torch.amp.is_autocast_available(device):
        return nullcontext()
    return torch.autocast(device, enabled=False)


def _count(x: Tensor, y: Tensor, clip: float, multiplicity: int, expected: float | None) -> int:
    """The number of samples, if the arguments fit together."""
    if not clip >= SMALLEST_CLIP:
        raise PlanError(f"clip = {clip}: the norm to clip to must be positive (at least 1e-12)")
    if multiplicity < 1:
        raise PlanError(f"multiplicity = {multiplicity}: at least 1 copy of a sample is needed")
    if len(x) != len(y) or len(x) % multiplicity:
        raise PlanError(
            f"{len(x)} inputs and {len(y)} targets do not make samples of {multiplicity} copies"
        )
    n = len(x) // multiplicity
    many = n if expected is None else expected + 16 * math.sqrt(expected)  # n itself is drawn
    if max(n, many) > MOST_SAMPLES:
        raise PlanError(
            f"private batches of {expected or n:,.0f} samples: the clip is proven for up to "
            f"{MOST_SAMPLES:,}"
        )
    return n
