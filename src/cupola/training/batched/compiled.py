"""Logistic regression at many sites, compiled: the fastest form, where numba is installed.

Some sites' whole rounds are one call without Python inside, and threads share the sites.
`pip install 'cupola[fast]'` brings numba; without it the explicit form does the work.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from cupola.base.cores import side_by_side
from cupola.training.batched import dense
from cupola.training.batched.samples import Samples
from cupola.training.batches import Work
from cupola.training.choices import Local
from cupola.training.workspace import Workspace

LANES = 32  # numbers that the compiled loop takes at once: four vectors of eight
SITES = 10  # in one call, half a millisecond; it orders the sums, whatever the number of workers
LONG = 500  # steps after which a call takes no further site


def possible(space: Workspace, local: Local) -> bool:
    """SGD on multinomial logistic regression, on the CPU, and numba is installed."""
    layers = dense.layers_of(space)
    single = layers is not None and len(layers) == 1
    simple = local.optimizer == "sgd" and local.send != "gradients" and not local.nesterov
    logistic = single and simple and space.plain_cross_entropy
    return logistic and space.device.type == "cpu" and _has_numba()


@lru_cache(maxsize=1)
def _has_numba() -> bool:
    return find_spec("numba") is not None


def compiled(
    model: Sequence[np.ndarray],
    samples: Samples,
    work: Sequence[Work],
    weight: np.ndarray,
    local: Local,
    lr: float,
    workers: int,
) -> list[np.ndarray]:
    """sum over sites of weight * change of the model, which is a weight (classes, d) and a bias.

    samples, work and weight (sites,): of each site. local: its momentum, proximal term and decay.
    """
    start, d = _padded(*model), model[0].shape[1]
    x, y = samples.x.flatten(1).numpy(), samples.y.numpy()
    first, steps = np.array(samples.first), np.array([w.steps for w in work])
    groups = _groups(steps)
    totals = np.zeros((len(groups), *start.shape))
    extras = (local.momentum, local.proximal, local.weight_decay)
    kernel, number = _kernel(), start.dtype.type
    calls = []
    for own, total in zip(groups, totals):
        order = np.concatenate([w.order for w in work[own]])
        sizes = np.concatenate([w.sizes for w in work[own]])
        batches = (first[own], order, sizes, steps[own], weight[own])
        calls.append((x, y, *batches, start, number(lr), *map(number, extras), total))
    side_by_side(lambda group: kernel(*calls[group]), range(len(calls)), workers)
    summed = totals.sum(0)
    return [summed[:, :d].copy(), summed[:, d].copy()]


def _groups(steps: np.ndarray) -> list[slice]:
    """Sites of one call each: few, and none after a site of many steps."""
    found, first = [], 0
    for last in range(1, len(steps) + 1):
        full = last - first == SITES or steps[first:last].sum() >= LONG
        if full or last == len(steps):
            found.append(slice(first, last))
            first = last
    return found


def _padded(weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """d weights, the bias, then zeros up to a multiple of LANES."""
    classes, d = weight.shape
    start = np.zeros((classes, -(-(d + 1) // LANES) * LANES), weight.dtype)
    start[:, :d], start[:, d] = weight, bias
    return start


@lru_cache(maxsize=1)
def _kernel() -> Any:
    """The compiled loop; compiled when first needed, and kept on disk where that is allowed."""
    from numba import njit

    # error_model: a model that has diverged gives numbers that are not finite, not an exception.
    return njit(
        nogil=True,
        cache=True,
        error_model="numpy",
        fastmath={"contract", "reassoc", "nsz", "arcp"},
    )(_rounds)


def _rounds(
    x: Any,
    y: Any,
    first: Any,
    order: Any,
    sizes: Any,
    steps: Any,
    weight: Any,
    start: Any,
    lr: Any,
    momentum: Any,
    proximal: Any,
    decay: Any,
    total: Any,
) -> None:
    """Local SGD of some sites; adds weight * (start - end) to total.

    x (samples, d), y (samples,); a site's samples begin at first (sites,). order: of all sites'
    samples, batch by batch; sizes: of all batches; steps (sites,): batches of each site. start and
    total (classes, width): padded, so that no inner loop has a remainder.
    """
    classes, width = start.shape
    d = x.shape[1]
    batch = sizes.max()
    rows = np.zeros((batch, width), start.dtype)
    rows[:, d] = 1
    back = np.empty((batch, classes), start.dtype)
    w, moving = np.empty_like(start), np.empty_like(start)
    plain = momentum == 0 and proximal == 0 and decay == 0
    place, turn = 0, 0
    for k in range(len(steps)):
        w[:] = start
        moving[:] = 0
        for _ in range(steps[k]):
            size = sizes[turn]
            scale = start.dtype.type(1 / size)
            if plain:
                scale *= lr  # gradients go into the model at once
            else:
                for c in range(classes):
                    for j in range(width):
                        pull = proximal * (w[c, j] - start[c, j]) + decay * w[c, j]
                        moving[c, j] = momentum * moving[c, j] + pull
            for b in range(size):  # all rows first: their ways from memory overlap
                sample = first[k] + order[place + b]
                for j in range(d):
                    rows[b, j] = x[sample, j]
            for b in range(size):
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
                for c in range(classes):
                    back[b, c] *= scale / norm
                label = y[first[k] + order[place + b]]
                if 0 <= label < classes:
                    back[b, label] -= scale
                else:  # one by one, the plain form ignores it (-100) or says what is wrong
                    total[0, 0] = np.nan
            for b in range(size):
                for c in range(classes):
                    g = back[b, c]
                    if plain:
                        for j in range(width):
                            w[c, j] -= g * rows[b, j]
                    else:
                        for j in range(width):
                            moving[c, j] += g * rows[b, j]
            if not plain:
                for c in range(classes):
                    for j in range(width):
                        w[c, j] -= lr * moving[c, j]
            place += size
            turn += 1
        for c in range(classes):
            for j in range(width):
                total[c, j] += weight[k] * (start[c, j] - w[c, j])
