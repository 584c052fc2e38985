"""Local training as a convex problem solved exactly, released by output or objective perturbation.

The site minimises its mean logistic loss plus local.proximal/2 |w - received|^2 (one class against
the rest beyond two classes) and answers received minus released, as any other training would.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.federation import Question, SiteContext
from cupola.learn.choices import Local, Privacy
from cupola.learn.workspace import Workspace
from cupola.nn import NamedLoss
from cupola.privacy.noise import source
from cupola.privacy.perturbation import (
    Logistic,
    objective_perturbation,
    output_perturbation,
    refusal,
    to_layer,
    to_start,
)

if TYPE_CHECKING:
    from cupola.learn.training import Training

CONSTANT = 0.5  # the bias feature, as a share of the norm bound


def require_convex(training: Training) -> None:
    """Refuse models, losses and settings for which the sensitivity is not known."""
    privacy, local, loss = training.privacy, training.local, training.problem.loss
    name = f"privacy.mechanism = '{privacy.mechanism}'"
    own = loss.name if isinstance(loss, NamedLoss) else "of the user's own"
    options = dict(loss.options) if isinstance(loss, NamedLoss) else {}
    reason = refusal(training.problem.build(), own, one_vs_rest=True, options=options)
    if reason:
        raise PlanError(f"{name}: {reason}")
    outputs = len(next(p for p in training.problem.build().parameters()))
    if outputs != training.problem.classes and (training.problem.classes, outputs) != (2, 1):
        raise PlanError(
            f"{name}: the model has {outputs} outputs for {training.problem.classes} classes"
        )
    if not local.proximal:
        raise PlanError(
            f"{name} needs local.proximal above 0: without strong convexity one example can move "
            "the solution arbitrarily far; or use 'dp-sgd'"
        )
    if local.send != "change" or local.control_variates:
        raise PlanError(f"{name} sends the change of the model; use local.send = 'change'")
    if privacy.neighbours != "replace-one":
        raise PlanError(
            f"{name} holds for replaced examples; set privacy.neighbours = 'replace-one'"
        )
    if training.participation.stragglers:
        raise PlanError(f"{name} solves its problem exactly; there are no stragglers")


def solved(
    site: SiteContext, question: Question, local: Local, privacy: Privacy, space: Workspace
) -> list[Tensor]:
    """The released change of every parameter: received minus solution."""
    linear = next(m for m in space.module.modules() if isinstance(m, nn.Linear))
    received = space.split(space.start)
    weight = received[0].double().cpu().numpy()
    bias = received[1].double().cpu().numpy() if linear.bias is not None else None
    outputs = len(weight)
    constant = CONSTANT * privacy.feature_norm if bias is not None else 0.0
    problem = Logistic(
        mu=local.proximal,
        bound=privacy.feature_norm,
        constant=constant,
        classes=max(2, outputs),
    )
    x, y = space.batch(site.data.train, slice(None))
    x = x.double()
    # An example that is not finite counts as zeros: an error would tell of it.
    x = torch.where(x.isfinite().flatten(1).all(1).view(-1, *[1] * (x.dim() - 1)), x, 0)
    inputs, labels = x.cpu().numpy(), y.reshape(-1).long().cpu().numpy()
    start = to_start(problem, weight, bias)
    random = source(site.secret_seed, "privacy noise", question.round, site.index)
    if privacy.mechanism == "output":
        assert privacy.noise is not None
        release = output_perturbation(
            problem, inputs, labels, start, noise=privacy.noise, rng=random, clip=privacy.clip
        )
    else:
        assert privacy.answer_epsilon is not None
        release = objective_perturbation(
            problem, inputs, labels, start, epsilon=privacy.answer_epsilon, rng=random
        )
    found = [part for part in to_layer(problem, release.weights, outputs) if part is not None]
    return [old - torch.from_numpy(new.copy()).to(old) for old, new in zip(received, found)]
