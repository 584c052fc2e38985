"""Logistic regression at many sites, compiled: the fastest form, where numba is installed.

Some sites' whole rounds are one call without Python inside, and threads share the sites.
`pip install 'cupola[fast]'` brings numba; without it the explicit form does the work.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cupola.learn import dense
from cupola.learn.choices import Local
from cupola.learn.stacked import is_plain_sgd
from cupola.learn.together import Cohort, answer_weights
from cupola.learn.workspace import Workspace

LANES = 32  # numbers that the compiled loop takes at once: four vectors of eight


def possible(space: Workspace, local: Local) -> bool:
    """Plain SGD on multinomial logistic regression, on the CPU, and numba is installed."""
    layers = dense.layers_of(space)
    single = layers is not None and len(layers) == 1
    plain = single and is_plain_sgd(local) and space.plain_cross_entropy
    return plain and space.device.type == "cpu" and find_spec("numba") is not None


def compiled(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * answer."""
    weight, bias = (p.numpy() for p in space.split(space.start))
    classes, d = weight.shape
    width = -(-(d + 1) // LANES) * LANES
    start = np.zeros((classes, width), weight.dtype)
    start[:, :d], start[:, d] = weight, bias
    total = np.zeros((classes, width))
    _kernel()(
        cohort.x.flatten(1).numpy(),
        cohort.y.numpy(),
        cohort.index.numpy(),
        cohort.share.numpy(),
        np.array(cohort.steps),
        answer_weights(cohort),
        start,
        weight.dtype.type(cohort.lr),
        total,
    )
    return [torch.from_numpy(total[:, :d].copy()), torch.from_numpy(total[:, d].copy())]


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The compiled loop; compiled when first needed, and kept on disk where that is allowed."""
    from numba import njit

    return njit(nogil=True, cache=True, fastmath={"contract", "reassoc", "nsz", "arcp"})(_rounds)


def _rounds(
    x: Any, y: Any, index: Any, share: Any, steps: Any, weight: Any, start: Any, lr: Any, total: Any
) -> None:
    """Local SGD of every site of a cohort; adds weight * (start - end) to total.

    x (samples, d), y (samples,), index and share (steps, sites, batch). start and total
    (classes, width): d weights, the bias, then zeros up to a multiple of LANES, so that no inner
    loop has a remainder.
    """
    classes, width = start.shape
    d = x.shape[1]
    batch = index.shape[2]
    rows = np.zeros((batch, width), start.dtype)
    rows[:, d] = 1
    back = np.empty((batch, classes), start.dtype)
    w = np.empty_like(start)
    for k in range(len(steps)):
        w[:] = start
        for t in range(steps[k]):
            for b in range(batch):
                if share[t, k, b] == 0:
                    continue
                sample = index[t, k, b]
                for j in range(d):
                    rows[b, j] = x[sample, j]
                top = -np.inf
                for c in range(classes):
                    z = lr * 0
                    for j in range(width):
                        z += w[c, j] * rows[b, j]
                    back[b, c] = z
                    top = max(top, z)
                norm = lr * 0
                for c in range(classes):
                    back[b, c] = np.exp(back[b, c] - top)
                    norm += back[b, c]
                scale = share[t, k, b] * lr
                for c in range(classes):
                    back[b, c] *= scale / norm
                back[b, y[sample]] -= scale
            for b in range(batch):
                if share[t, k, b] == 0:
                    continue
                for c in range(classes):
                    g = back[b, c]
                    for j in range(width):
                        w[c, j] -= g * rows[b, j]
        for c in range(classes):
            for j in range(width):
                total[c, j] += weight[k] * (start[c, j] - w[c, j])
