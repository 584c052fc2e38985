"""DP-SGD on linear models for many sites at once: one batched computation over sites x samples.

A sample's gradient is the outer product of its output gradient d and its input x (with a 1 for the
bias), so that its norm is |d| |x|: it is clipped by scaling d, and no gradient of a single sample
is ever made. Every site draws its own batches and noise, the same as it draws alone.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from cupola.privacy.noise import noise_scale, round_to_grid, source
from cupola.privacy.persample.rules import ROUNDING
from cupola.training.batched import dense
from cupola.training.batched.cohort import Cohort
from cupola.training.batched.stacked import run_stack
from cupola.training.mechanisms.dp_sgd import sampling_rate
from cupola.training.workspace import Workspace


def possible(space: Workspace) -> bool:
    """A single linear layer with bias, whose noise a site draws as it does alone."""
    layers = None if space.problem.device_noise else dense.layers_of(space)
    return layers is not None and len(layers) == 1


def private_linear(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * answer."""
    weight, bias = space.split(space.start)
    start = torch.cat([weight, bias[:, None]], 1)
    stack = start.expand(len(cohort), *start.shape).clone()
    outputs, inputs = weight.shape
    noise, clip = cohort.mechanism.noise, cohort.mechanism.privacy.clip
    round = cohort.question.round
    sources = [source(s.secret_seed, "privacy noise", round, s.index) for s in cohort.sites]
    sizes = [len(site.data.train) for site in cohort.sites]
    expected = np.array([sampling_rate(n, cohort.local) * n for n in sizes])
    deviation = noise_scale(clip * (1 + ROUNDING), noise, start.numel())
    cohort = replace(
        cohort,
        x=dense.with_ones(cohort.x.flatten(1)),
        y=dense.targets(space, cohort),
        share=(cohort.share > 0).to(cohort.share).unsqueeze(-1),
    )

    def gradient(rows: list[Tensor], x: Tensor, y: Tensor, share: Tensor) -> list[Tensor]:
        back = dense.output_gradient(space, torch.bmm(x, rows[0].mT), y, share)
        # In float64, as a site alone: squares of tiny output gradients at huge inputs would vanish
        # in float32, and the rounding of a float32 sum is bounded by nothing.
        back, x = back.double(), x.double()
        norms = back.norm(dim=-1) * x.norm(dim=-1) * (1 + 2.0**-40)
        back = back * (clip / norms).clamp_max(1).unsqueeze(-1)
        if not bool(torch.isfinite(norms).all()):
            # An example whose gradient overflows counts as zero: an error would tell of it.
            finite = torch.isfinite(norms).unsqueeze(-1)
            back, x = torch.where(finite, back, 0), torch.where(finite, x, 0)
        sums = torch.bmm(back.mT, x).cpu().numpy()
        # In the order of a site alone: all weights, then all biases.
        flat = np.concatenate([sums[..., :-1].reshape(len(sums), -1), sums[..., -1]], 1)
        if noise:
            drawn = np.stack([s.normals(start.numel()) for s in sources[: len(sums)]])
            flat = round_to_grid(flat, drawn * deviation, deviation)
        flat /= expected[: len(sums), None]
        edge = outputs * inputs
        noised = np.concatenate(
            [flat[:, :edge].reshape(-1, outputs, inputs), flat[:, edge:, None]], 2
        )
        return [torch.from_numpy(noised).to(start)]

    (total,) = run_stack(cohort, [start], [stack], gradient)
    return [total[:, :-1].contiguous(), total[:, -1].contiguous()]
