"""Private convex optimisation at the site: a problem solved exactly, released with noise.

The site minimises its mean logistic loss plus local.proximal/2 |w - received|^2 (one class against
the rest beyond two classes) and answers received minus released, as any other training would. Where
the noise goes, on the solution or into the objective, is each mechanism's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from cupola.errors import PlanError
from cupola.nn.losses import NamedLoss
from cupola.privacy.noise import Source, source
from cupola.privacy.perturbation import Logistic, Release, refusal, to_layer, to_start
from cupola.training.mechanisms.base import Mechanism
from cupola.training.turn import Turn

if TYPE_CHECKING:
    from cupola.training.loop import Training

CONSTANT = 0.5  # the bias feature, as a share of the norm bound


class Convex(Mechanism):
    """Linear models with logistic loss and local.proximal above 0."""

    noised_at_site = True
    with_methods = False
    sends = sends_alone = "noised updates"

    def released(
        self, problem: Logistic, x: np.ndarray, y: np.ndarray, start: np.ndarray, random: Source
    ) -> Release:
        """The solution as it leaves the site."""
        raise NotImplementedError

    def check(self, training: Training) -> None:
        """Refuse models, losses and settings for which the sensitivity is not known."""
        choice = training.problem.trainable
        if choice.on or choice.level:
            raise PlanError(
                f"[trainable] with {self.key}: it solves for all weights of one linear layer; "
                "there is no part to freeze. Use 'dp-sgd'"
            )
        local, loss = training.local, training.problem.loss
        own = loss.name if isinstance(loss, NamedLoss) else "of the user's own"
        options = dict(loss.options) if isinstance(loss, NamedLoss) else {}
        module, classes = training.problem.build(), training.problem.classes
        reason = refusal(module, own, one_vs_rest=True, options=options)
        if reason:
            raise PlanError(f"{self.key}: {reason}")
        outputs = len(next(module.parameters()))
        if outputs != classes and (classes, outputs) != (2, 1):
            raise PlanError(f"{self.key}: the model has {outputs} outputs for {classes} classes")
        if not local.proximal:
            raise PlanError(
                f"{self.key} needs local.proximal above 0: without strong convexity one example "
                "can move the solution arbitrarily far; or use 'dp-sgd'"
            )
        if local.send != "change" or local.control_variates:
            raise PlanError(f"{self.key} sends the change of the model; use local.send = 'change'")
        if self.privacy.neighbours != "replace-one":
            raise PlanError(
                f"{self.key} holds for replaced examples; set privacy.neighbours = 'replace-one'"
            )
        if training.participation.stragglers:
            raise PlanError(f"{self.key} solves its problem exactly; there are no stragglers")

    def solved(self, turn: Turn) -> list[Tensor] | None:
        """The released change of every parameter: received minus solution."""
        site, space = turn.site, turn.space
        linear = next(m for m in space.module.modules() if isinstance(m, nn.Linear))
        received = space.split(space.start)
        weight = received[0].double().cpu().numpy()
        bias = received[1].double().cpu().numpy() if linear.bias is not None else None
        outputs, bound = len(weight), self.privacy.feature_norm
        problem = Logistic(
            mu=turn.local.proximal,
            bound=bound,
            constant=CONSTANT * bound if bias is not None else 0.0,
            classes=max(2, outputs),
        )
        x, y = space.batch(site.data.train, slice(None))
        x = x.double()
        # An example that is not finite counts as zeros: an error would tell of it.
        x = torch.where(x.isfinite().flatten(1).all(1).view(-1, *[1] * (x.dim() - 1)), x, 0)
        inputs, labels = x.cpu().numpy(), y.reshape(-1).long().cpu().numpy()
        random = source(site.secret_seed, "privacy noise", turn.question.round, site.index)
        release = self.released(problem, inputs, labels, to_start(problem, weight, bias), random)
        found = [part for part in to_layer(problem, release.weights, outputs) if part is not None]
        return [old - torch.from_numpy(new.copy()).to(old) for old, new in zip(received, found)]
