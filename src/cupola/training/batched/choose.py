"""The task 'train' for many sites in one computation, and the choice between its forms.

common:    one gradient at the common model (FedFGD, FedSMB): all sites' samples share its weights.
implicit:  dense networks and few samples a site: local models are never made (see `dense`).
compiled:  SGD on logistic regression, where numba is installed (see `compiled`).
explicit:  dense networks: hand-written gradients over a stack of models.
stacked:   any network that vmap can take: a stack of models, gradients traced once.
Each gives what training one by one gives, to rounding. Sites are sorted by their number of steps,
so that a stack shrinks as sites finish instead of computing masked steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from cupola.base.cores import one_core_each, side_by_side
from cupola.federation.message import Arrays, Question
from cupola.federation.site import Partial, SiteContext
from cupola.training.batched.cohort import Cohort, Team, gather
from cupola.training.batched.samples import samples_of
from cupola.training.batches import Work, share_out
from cupola.training.choices import Local
from cupola.training.local import kept_after, reported_loss
from cupola.training.mechanisms import mechanism_for
from cupola.training.mechanisms.base import Mechanism
from cupola.training.methods import methods_for
from cupola.training.turn import Turn
from cupola.training.workspace import Workspace, workspace_of

SMALL_MODEL = 500_000  # parameters up to which stacking beats one by one
CACHE_BYTES = 10 << 20  # a stack of models should stay in the processor's cache
CHUNKS_A_SUM = 4  # chunks whose sums one worker adds up before handing them over
IMPLICIT_SITES = 64  # sites in one step of the implicit form
IMPLICIT_SAMPLES = 64  # local samples up to which the implicit form is considered


Form = Callable[[Workspace, Cohort], list[Tensor]]


def train_many(sites: Sequence[SiteContext], question: Question) -> list[Partial] | None:
    """Sums over these sites, or None where one by one is the way."""
    alike = _by_part(sites)
    if len(alike) > 1:
        found = [train_many(group, question) for group in alike]
        done = [partials for partials in found if partials is not None]
        return [p for partials in done for p in partials] if len(done) == len(found) else None
    local = Local.model_validate(question.options["local"])
    space, mechanism = workspace_of(sites[0]), mechanism_for(question)
    chosen = _form(sites, question, local, mechanism)
    if chosen is None:
        return None
    form, work = chosen
    failed = {s.index: w.declined for s, w in zip(sites, work) if w.declined is not None}
    able = [i for i, w in enumerate(work) if w.declined is None]
    for i in able:
        if kept := kept_after(Turn(sites[i], question, local), work[i], mechanism):
            sites[i].keep(question, kept)
    if not able:
        return [Partial({}, 0.0, [], failed, {})]
    able.sort(key=lambda i: -work[i].steps)
    loss = _reported_losses([sites[i] for i in able], question, space)
    team = Team([sites[i] for i in able], [work[i] for i in able], local, question, mechanism, loss)
    if form == "compiled":
        partials = [_in_compiled_calls(space, team)]
    else:
        partials = _in_chunks(space, team, form)
    partials[0].failed = failed
    return partials


def possible(sites: Sequence[SiteContext], question: Question) -> bool:
    """Whether these sites can be computed together in the form that their engine insists on."""
    local, mechanism = Local.model_validate(question.options["local"]), mechanism_for(question)
    return all(_form(alike, question, local, mechanism) is not None for alike in _by_part(sites))


def _form(
    sites: Sequence[SiteContext], question: Question, local: Local, mechanism: Mechanism
) -> tuple[Form | Literal["compiled"], list[Work]] | None:
    """How sites that train the same part are computed together, and their work; None: not."""
    space, mode = workspace_of(sites[0]), sites[0].mode
    if not space.independent or not all(m.stackable for m in methods_for(question)):
        return None
    if "transforms" in question.options:  # what one site sends is rounded before it is added up
        return None
    if space.problem.precision == "bfloat16":  # gradients by hand know nothing of autocast
        return None
    if not mechanism.stackable or mechanism.privacy.augmentations != 1:
        return None
    if any(s.data.train.transform is not None or not s.data.train.in_memory for s in sites):
        return None
    held = next((site.data.train for site in sites if len(site.data.train)), None)
    if held is None or not space.loss_is_per_sample(held):
        return None
    work = share_out(sites, question, local)
    form = _choose(space, local, work, mode, mechanism)
    return None if form is None else (form, work)


def _by_part(sites: Sequence[SiteContext]) -> list[list[SiteContext]]:
    """Sites by the part of the model that they train."""
    if not workspace_of(sites[0]).problem.trainable.level:
        return [list(sites)]
    alike: dict[int, list[SiteContext]] = {}
    for site in sites:
        alike.setdefault(id(workspace_of(site)), []).append(site)
    return list(alike.values())


def _reported_losses(
    sites: Sequence[SiteContext], question: Question, space: Workspace
) -> list[float]:
    if not question.options.get("report_loss"):
        return []
    space.load(question.arrays)
    return [float(reported_loss(site, question, space)["loss"]) for site in sites]


def _in_compiled_calls(space: Workspace, team: Team) -> Partial:
    from cupola.training.batched.compiled import compiled

    names = [f"model/{name}" for name in space.names]
    sums = compiled(
        [team.question.arrays[name] for name in names],
        samples_of(space, [site.data.train for site in team.sites]),
        team.work,
        team.answer_weights(),
        team.local,
        team.lr,
        team.sites[0].workers,
    )
    return _partial(space, team, dict(zip(names, sums)))


def _in_chunks(space: Workspace, team: Team, form: Form) -> list[Partial]:
    """Stacks of as many sites as the form takes at once, and sums over some stacks."""
    size = _chunk_size(space, form, len(team))
    # How sites are grouped must not depend on the number of workers: it orders the sums.
    width = size * CHUNKS_A_SUM

    @torch.no_grad()
    def compute(start: int) -> Partial:
        stop = min(start + width, len(cohort))
        parts = [cohort.part(i, min(i + size, stop)) for i in range(start, stop, size)]
        sums = [s.double() for s in form(space, parts[0])]
        for part in parts[1:]:
            for total, more in zip(sums, form(space, part)):
                total.add_(more)
        halves = sum(sum(part.halves) for part in parts)
        return _partial(space, team.part(start, stop), space.named("model", sums), halves)

    space.load(team.question.arrays)
    with one_core_each():
        cohort = gather(space, team)
        return side_by_side(compute, range(0, len(team), width), team.sites[0].workers)


def _choose(
    space: Workspace, local: Local, work: Sequence[Work], mode: str, mechanism: Mechanism
) -> Form | Literal["compiled"] | None:
    """The fastest form that gives what training one by one gives; None: one by one is the way.

    Small models spend their time on starting operations, not on computing: a stack starts as many
    for a hundred sites as one site alone, so stacking pays until one model fills the processor
    (SMALL_MODEL), and never for convolutions, which fill it early. What a mechanism needs comes
    first: clips of single examples have a batched form for linear models only, clips of updates
    need every site's own update, which the common, implicit and compiled forms never make. After
    that, the form that makes least: one gradient at the common model, where nobody moves away from
    it; compiled code; no local models at all, if a site's few samples span less than the weights
    have columns (`implicit` works with products of samples, which then are the smaller matrix);
    gradients by hand; and last gradients traced by vmap, which take any network.
    """
    from cupola.training.batched import compiled, dense, private_linear, stacked

    if mechanism.per_example:
        possible = private_linear.possible(space) and mode in ("auto", "together", "explicit")
        return private_linear.private_linear if possible else None
    if mechanism.by_coordinator:  # updates are clipped one by one: they must be there
        return _clippable(space, local, mode)
    longest = max((w.steps for w in work), default=0)
    if local.send == "gradients" and longest <= 1:
        return common if mode in ("auto", "together") else None
    if local.work == "gradient":
        return None
    visited = max((w.used for w in work), default=0) * (
        local.epochs if local.work == "epochs" else 1
    )
    layers = dense.layers_of(space)
    if mode in ("auto", "together", "compiled") and compiled.possible(space, local):
        return "compiled"
    if mode == "auto" and space.flat.numel() > SMALL_MODEL and layers is None:
        return None
    if layers is not None and mode in ("auto", "together"):
        wide = min(layer.in_features for layer in layers[:1])
        few = visited <= min(IMPLICIT_SAMPLES, wide // 4) and local.optimizer == "sgd"
        return dense.implicit if few else dense.explicit
    if mode in ("implicit", "explicit"):
        possible = layers is not None and (mode == "explicit" or local.optimizer == "sgd")
        return getattr(dense, mode) if possible else None
    if space.properties.stackable and (mode in ("stacked", "together") or space.is_dense_only):
        return stacked.stacked
    return None


def _clippable(space: Workspace, local: Local, mode: str) -> Form | None:
    """A form that holds every site's update."""
    from cupola.training.batched import dense, stacked

    if local.work == "gradient" or (mode == "auto" and space.flat.numel() > SMALL_MODEL):
        return None
    if dense.layers_of(space) is not None and mode in ("auto", "together", "explicit"):
        return dense.explicit
    wanted = mode in ("stacked", "together") or (mode == "auto" and space.is_dense_only)
    return stacked.stacked if space.properties.stackable and wanted else None


def _chunk_size(space: Workspace, form: Form, sites: int) -> int:
    from cupola.training.batched import dense

    if form is common or form is dense.implicit:
        return IMPLICIT_SITES
    return max(1, min(sites, CACHE_BYTES // (space.flat.numel() * space.flat.element_size())))


def common(space: Workspace, cohort: Cohort) -> list[Tensor]:
    """sum over sites of weight * gradient at the common model, in passes of bounded size."""
    from cupola.training.local import MICRO_BATCH

    weight = torch.from_numpy(cohort.weight).to(cohort.share)
    each = (cohort.share[0] * weight[:, None]).reshape(-1)
    places = cohort.index[0].reshape(-1)
    kept = each > 0
    each, places = each[kept], places[kept]
    total = [torch.zeros_like(p) for p in space.params]
    for part, scale in zip(places.split(MICRO_BATCH), each.split(MICRO_BATCH)):
        with torch.enable_grad():
            losses = space.problem.loss(space.module(cohort.x[part]), cohort.y[part])
            loss = (losses * scale).sum()
            grads = torch.autograd.grad(loss, space.params, materialize_grads=True)
        torch._foreach_add_(total, list(grads))
    return total


def _partial(space: Workspace, team: Team, arrays: Arrays, halves: float = 0.0) -> Partial:
    sample = _blank_answer(space)
    if team.local.send == "normalised":
        arrays["steps"] = np.array(float(team.weight @ team.effective()))
        sample["steps"] = np.zeros(())
    if team.mechanism.privacy.quantile is not None:
        arrays["below"], sample["below"] = np.array(halves), np.zeros(())
    if team.loss:
        arrays["loss"], sample["loss"] = np.array(float(team.weight @ team.loss)), np.zeros(())
    sites = [site.index for site in team.sites]
    return Partial(arrays, float(team.weight.sum()), sites, {}, sample)


def _blank_answer(space: Workspace) -> Arrays:
    """Arrays with the layout of the parameters that take no memory."""
    if "blank answer" not in space.cache:
        kind = np.float64 if space.flat.dtype == torch.float64 else np.float32
        space.cache["blank answer"] = {
            f"model/{n}": np.broadcast_to(kind(0), tuple(p.shape)) for n, p in space.pairs()
        }
    return dict(space.cache["blank answer"])
