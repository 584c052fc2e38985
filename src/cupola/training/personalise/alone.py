"""The rivals that a site carries out alone: fine-tuning, distillation, EWC, from scratch.

The site trains the received model on its own data, round by round like a federation of one site,
and keeps the model that is best on its validation part. The model stays at the site; what it
answers are counts of that model on held-out data.

distill: alpha T^2 KL(teacher, student) + (1 - alpha) loss, both softened by the temperature T; the
    teacher is the received model.
ewc: loss + lambda/2 sum_i F_i (w_i - w*_i)^2 around the received weights w*, F the diagonal
    empirical Fisher information on the site's training data. The penalty is stepped implicitly
    (after each step on the loss, w <- (w + c w*) / (1 + c) with c = lr lambda F), since explicit
    steps diverge where lr lambda F exceeds 2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from cupola.base.formatting import LOWER_IS_BETTER
from cupola.federation.message import Arrays, Contribution, Declined, Question, blank
from cupola.federation.site import SiteContext, StateStore, task
from cupola.training.batches import share_out
from cupola.training.choices import Local, Privacy
from cupola.training.local import augmentation, gradient_of, own_randomness
from cupola.training.metrics import count, metrics
from cupola.training.optimizers import LocalOptimizer
from cupola.training.personalise.parts import SPLITS
from cupola.training.workspace import Workspace, workspace_of

Gradient = Callable[[Any, torch.Generator | None], list[Tensor]]


@task("adapt", random=lambda _: True)
def adapt(site: SiteContext, question: Question) -> Contribution:
    """Adapt the received model to this site alone.

    Options: 'method', 'local' (Local), 'rounds', 'every', 'metric', 'alpha', 'temperature',
    'strength', 'batch_size' and 'auroc' (of evaluation).
    Answer: counts on 'validation/' and 'test/' data where there are any, and the 'round' that was
    kept (0: the model as received).
    """
    if not len(site.data.train):
        raise Declined("no samples")
    space = workspace_of(site)
    space.load(question.arrays)
    with torch.no_grad(), own_randomness(site, question, space):
        kept = _adapted(replace(site, store=StateStore()), question, space)
    arrays = {"round": torch.tensor(kept).numpy()}
    for split in SPLITS:
        if len(data := getattr(site.data, split)):
            counts = count(space, [data], question.options)
            arrays |= {f"{split}/{name}": array for name, array in counts.items()}
    return Contribution(arrays)


@adapt.rehearses
def _rehearsed(sites: Sequence[SiteContext], question: Question) -> list[Arrays | str]:
    """Counts on the parts that a site holds."""
    found: list[Arrays | str] = []
    for site in sites:
        held = ("round", *(split for split in SPLITS if len(getattr(site.data, split))))
        told = {n: blank(s) for n, s in question.expects.items() if n.split("/")[0] in held}
        found.append(told if len(site.data.train) else "no samples")
    return found


def _adapted(site: SiteContext, question: Question, space: Workspace) -> int:
    """Train in place, leave the best model in `space`; the round after which it was best."""
    options = question.options
    local = Local.model_validate(options["local"])
    teacher = space.snapshot()
    gradient = _distilled(site, options, space, teacher) if options["method"] == "distill" else None
    penalty = None
    if options["method"] == "ewc":
        penalty = _fisher(site, space), float(options["strength"])
    best, score, kept = teacher, _score(site, options, space), 0
    for round in range(1, options["rounds"] + 1):
        asked = replace(question, round=question.round + round - 1, step=round)
        lr = local.lr * local.schedule.factor(round, options["rounds"])
        _round(site, asked, local, lr, space, gradient, penalty)
        due = round % options["every"] == 0 or round == options["rounds"]
        if not due or not bool(torch.isfinite(space.flat).all()):
            continue
        now = _score(site, options, space)
        if now is None or score is None or now > score:
            best, score, kept = space.snapshot(), now, round
    space.restore(best)
    return kept


def _round(
    site: SiteContext,
    question: Question,
    local: Local,
    lr: float,
    space: Workspace,
    gradient: Gradient | None,
    penalty: tuple[Tensor, float] | None,
) -> None:
    """One round's local work, as in the task 'train'."""
    work = share_out([site], question, local)[0]
    optimizer, augment = LocalOptimizer(local, lr), augmentation(site, question, Privacy())
    start, received = space.split(space.flat.clone()), space.start
    for index in work.batches:
        if gradient is None:
            grads = gradient_of(space, site, index, augment, whole=local.work == "gradient")
        else:
            grads = gradient(index, augment)
        if local.proximal:
            torch._foreach_add_(grads, space.params, alpha=local.proximal)
            torch._foreach_add_(grads, start, alpha=-local.proximal)
        optimizer.step(space.params, grads)
        if penalty is not None:
            c = lr * penalty[1] * penalty[0]
            space.flat.add_(c * received).div_(1 + c)
    if local.work == "batches":
        site.keep(question, {"cursor": torch.tensor(work.cursor).numpy()})


def _distilled(
    site: SiteContext, options: Mapping[str, Any], space: Workspace, teacher: dict[str, Tensor]
) -> Gradient:
    alpha, heat = options["alpha"], options["temperature"]
    axis = -1 if space.problem.kind == "language" else 1

    def gradient(index: Any, augment: torch.Generator | None) -> list[Tensor]:
        x, y = space.batch(site.data.train, torch.from_numpy(index), augment)
        said = _logits(_as_was(space, teacher, x), axis).div(heat).softmax(axis)
        with torch.enable_grad():
            output = space.module(x)
            student = (_logits(output, axis) / heat).log_softmax(axis)
            soft = F.kl_div(student, said, reduction="none").sum(axis).mean()
            hard = space.problem.loss(output, y).mean()
            total = alpha * heat**2 * soft + (1 - alpha) * hard
            return list(torch.autograd.grad(total, space.params, materialize_grads=True))

    return gradient


def _logits(output: Tensor, axis: int) -> Tensor:
    """Two scores where a model gives one for two classes."""
    scores = output.unsqueeze(1) if output.dim() == 1 else output
    if scores.shape[axis] == 1:
        scores = torch.cat([torch.zeros_like(scores), scores], axis)
    return scores


def _as_was(space: Workspace, model: dict[str, Tensor], x: Tensor) -> Tensor:
    """What a model kept by `Workspace.snapshot` says, in evaluation mode."""
    space.module.eval()
    try:
        parts = dict(zip(space.names, space.split(model["flat"])))
        buffers = {name: model[f"buffer/{name}"] for name in space.buffers}
        return torch.func.functional_call(space.module, {**parts, **buffers}, (x,))
    finally:
        space.module.train()


def _fisher(site: SiteContext, space: Workspace) -> Tensor:
    """Mean square of the gradients of single examples at the received model, flat."""
    data, total = site.data.train, torch.zeros_like(space.flat)
    space.module.eval()
    try:
        for i in range(len(data)):
            grads = space.gradient(*space.batch(data, slice(i, i + 1)))
            total += torch.cat([g.reshape(-1) for g in grads]).square_()
    finally:
        space.module.train()
    return total / len(data)


def _score(site: SiteContext, options: Mapping[str, Any], space: Workspace) -> float | None:
    """On the validation part, the higher the better; None without one (the last model is kept)."""
    if not len(site.data.validation):
        return None
    found = metrics(count(space, [site.data.validation], options)).get(options["metric"])
    if found is None:
        return None
    return -found if options["metric"] in LOWER_IS_BETTER else found
