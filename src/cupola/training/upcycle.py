"""Upcycled-FL: every second round by the coordinator alone, from the last two models (003).

Round 2m-1 is a training round like any other. Round 2m asks nobody and moves on along what the
training round changed (Algorithm 2; the sites' equation 4, summed over them):

    w_2m = w_2m-1 + c_m (w_2m-1 - w_2m-2),    c_m = mu / (mu + lambda_m)

mu is the strength of the proximal term, lambda_m the `damping`: of the step from the sites' last
models. It is linear extrapolation: with SGD of rate 1 at the coordinator, the models after even
rounds are those of training rounds alone with server.lr = 1 + c.

Parameters only are moved. Buffers stay as the sites averaged them (an extrapolated variance could
be negative), and so do what the coordinator's optimizer keeps (momentum, Adam's moments) and
SCAFFOLD's variates, which describe gradients that were really computed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.errors import PlanError
from cupola.federation.message import Arrays
from cupola.training.choices import Upcycle

if TYPE_CHECKING:
    from cupola.training.loop import Training

# adaptive: how far the factor follows the loss, and what the loss is held against
LESS, MORE, MEMORY = 0.8, 1.1, 0.5


def is_free(choice: Upcycle | None, round: int) -> bool:
    """Whether the coordinator makes this round (the first is 1) alone."""
    return choice is not None and round % 2 == 0


def training_rounds(choice: Upcycle | None, rounds: int) -> int:
    """How many of the first `rounds` rounds ask sites; so also the number of a training round."""
    return rounds if choice is None else (rounds + 1) // 2


def factor(choice: Upcycle, proximal: float, number: int, adapted: float | None = None) -> float:
    """c of the free round that follows training round `number`; proximal: mu, unless given.

    growing: lambda grows so that c falls as 1/sqrt(m); its mean over M rounds is then below
    2 c_1/sqrt(M), all that Corollary 4.8 needs, and M need not be known.
    """
    if adapted is not None:
        return adapted
    c = choice.factor
    if c is None:
        mu = choice.mu or proximal
        c = mu / (mu + (choice.damping or 0.0))
    return c / math.sqrt(number) if choice.growing else c


def follow_loss(
    choice: Upcycle, proximal: float, loss: float, values: Mapping[str, Any]
) -> dict[str, float]:
    """adaptive: the next factor, from the sites' mean loss at the model they received.

    That model is the last extrapolation. While the loss is below its own moving mean, the factor
    grows by a tenth, up to 1; where it is above (or not finite), it shrinks by a fifth.
    """
    now = float(values.get("factor", factor(choice, proximal, 1)))
    past = values.get("loss")
    if not math.isfinite(loss):
        return {"factor": now * LESS} | ({} if past is None else {"loss": past})
    if past is None:
        return {"factor": now, "loss": loss}
    moved = now * LESS if loss > past else min(1.0, now * MORE)
    return {"factor": moved, "loss": MEMORY * past + (1 - MEMORY) * loss}


def remembered(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """The model before a training round, kept until the free round after it."""
    return {f"before/{n[6:]}": a for n, a in arrays.items() if n.startswith("model/")}


def extrapolated(arrays: Mapping[str, np.ndarray], c: float) -> Arrays:
    """The model further along its last change, computed in float64."""
    moved = {}
    with np.errstate(over="ignore", invalid="ignore"):  # found out later, in words
        for name, before in arrays.items():
            if name.startswith("before/"):
                last = arrays[f"model/{name[7:]}"]
                change = last.astype(np.float64) - before
                moved[f"model/{name[7:]}"] = (last + c * change).astype(last.dtype)
    return moved


def require_upcyclable(training: Training) -> None:
    """Refuse what makes no sense, with the way out."""
    choice = training.server.upcycle
    if choice is None:
        return
    if choice.factor is None and not (choice.mu or training.local.proximal):
        raise PlanError(
            "server.upcycle.damping gives c = mu / (mu + damping), and there is no mu: set "
            "local.proximal or server.upcycle.mu, or server.upcycle.factor instead"
        )
    if choice.adaptive and training.privacy.on:
        raise PlanError(
            f"server.upcycle.adaptive: sites report their loss, which {training.mechanism.key} "
            "neither noises nor charges; use a fixed factor or growing = true"
        )
    if choice.adaptive and training.task != "train":
        raise PlanError(f"server.upcycle.adaptive needs task = 'train'; '{training.task}' is asked")
