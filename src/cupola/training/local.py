"""The task 'train': what a site computes in a round.

`train` is the plain form, one site at a time on the worker's model. The forms for many sites at
once are in `batched`; tests hold them equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from cupola.base.randomness import derive
from cupola.errors import FederationError
from cupola.federation.message import Arrays, Contribution, Declined, Question
from cupola.federation.site import Charge, Partial, SiteContext, task
from cupola.privacy.secret_draws import secret_draws, secret_generator
from cupola.training.batches import Work, declined_by, share_out
from cupola.training.choices import Local, Privacy
from cupola.training.mechanisms import mechanism_for
from cupola.training.mechanisms.base import Mechanism
from cupola.training.methods import methods_for, own_of
from cupola.training.methods.accumulation import accumulation_coefficients
from cupola.training.methods.local_steps import LocalSteps
from cupola.training.methods.method import OWN, BatchLoss, Method, overrides
from cupola.training.methods.own_parts import staying, with_own_parts
from cupola.training.metrics import count
from cupola.training.optimizers import LocalOptimizer
from cupola.training.transforms.pipeline import packed_answer, packed_layout, unpacked_question
from cupola.training.turn import Turn
from cupola.training.workspace import Workspace, workspace_of

MICRO_BATCH = 256  # samples per pass of a full gradient; bounds memory, changes no result


def _is_random(question: Question) -> bool:
    """Whether another round gives another answer: batches are drawn, or noise is."""
    local = Local.model_validate(question.options["local"])
    return local.work != "gradient" or mechanism_for(question).noised_at_site


@task("train", random=_is_random)
def train(site: SiteContext, question: Question) -> Contribution:
    """Train the received model on this site's data and answer the update.

    Options: 'local' (Local), 'lr' (of this round), 'participation' (simulated stragglers),
    'privacy' (Privacy, its noise found), 'pattern' (of participation, for dp-ftrl), 'report_loss',
    'transforms' (what is done to the update before it leaves; see `transforms.pipeline`),
    'method' (a plan's [method]).
    Answer: 'model/...' the update as a pseudo-gradient (start minus end, or accumulated gradients),
    'buffer/...' new buffers, what methods add ('steps' for FedNova, 'variate/...' for SCAFFOLD),
    'below' (the clip), 'loss' (of the received model, where it is asked for).
    """
    question = unpacked_question(question, workspace_of(site))
    turn = turn_of(site, question)
    work = share_out([site], question, turn.local)[0]
    if work.declined:
        raise Declined(work.declined)
    turn.space.load(with_own_parts(turn, own_of(question)))
    with torch.no_grad(), own_randomness(site, question, turn.space):
        return _train(turn, work)


def turn_of(site: SiteContext, question: Question) -> Turn:
    return Turn(site, question, Local.model_validate(question.options["local"]))


@train.charges
def charge(site: SiteContext, question: Question) -> Charge | None:
    """What a training answer costs; None if nothing protects it."""
    mechanism = mechanism_for(question)
    if mechanism.on and not len(site.data.train):
        return Charge(())  # it will give no answer
    return mechanism.charge(turn_of(site, question))


@train.many
def train_together(sites: Sequence[SiteContext], question: Question) -> list[Partial] | None:
    from cupola.training.batched.choose import train_many  # it needs this module's definitions

    return train_many(sites, question)


@train.rehearses
def _rehearsed(sites: Sequence[SiteContext], question: Question) -> list[Arrays | str]:
    """Who would answer, and with which arrays; for dp-ftrl a site keeps that it was asked."""
    local = Local.model_validate(question.options["local"])
    mechanism, layouts = mechanism_for(question), dict[int, Arrays]()  # by level
    found: list[Arrays | str] = []
    for site, declined in zip(sites, declined_by(sites, question, local)):
        if declined is None and (kept := mechanism.kept(Turn(site, question, local))):
            site.keep(question, {**site.recall(question), **kept})
        space = workspace_of(site)
        if id(space) not in layouts:
            layouts[id(space)] = _layout(question, space)
        found.append(declined or layouts[id(space)])
    return found


def _layout(question: Question, space: Workspace) -> Arrays:
    """Arrays like those of an answer by a site that trains in this workspace."""
    own = {f"{part}/{name}" for part in ("model", "variate") for name in space.names}
    layout = {
        name: question.arrays.get(name, np.zeros(()))
        for name in question.expects
        if name in own or not name.startswith(("model/", "variate/"))
    }
    return packed_layout(space, question, layout)


def _train(turn: Turn, work: Work) -> Contribution:
    site, question, local, space = *turn, turn.space
    mechanism = mechanism_for(question)
    arrays = reported_loss(site, question, space)  # first: training moves the model
    methods = methods_for(question)
    update, own = mechanism.solved(turn), Arrays()
    if update is None:
        update, own = _descended(turn, work, mechanism, methods)
    for method in methods:
        update = method.update(turn, update, work.steps)
    sent, stay = mechanism.at_site(turn, update), staying(own_of(question), space.module)
    if stay and mechanism.on:
        raise Declined("a mechanism clips over all parameters, and some of them stay here")
    arrays |= {name: array for name, array in sent.items() if name not in stay}
    kept = kept_after(turn, work, mechanism)
    if stay:
        own = {n: a for n, a in space.trained().items() if n in stay} | own
    finite = all(math.isfinite(array.sum()) for array in (*arrays.values(), *own.values()))
    if finite:
        kept |= {methods[-1].named(OWN, name): array for name, array in own.items()}
    for method in methods if finite else ():
        more = method.answer(turn, work.steps)
        if more and mechanism.on and method == own_of(question):
            raise Declined("a mechanism protects the update, and nothing that a method adds")
        arrays |= more
        for name, tensors in method.keep(turn, work.steps).items():
            named = space.named(method.named(name), tensors)
            kept |= {n: array.copy() for n, array in named.items()}
    answer = Contribution(arrays, float(work.used) if local.weighting == "samples" else 1.0)
    if finite:
        answer, unsent = packed_answer(turn, answer)
        kept |= unsent
    if kept:
        site.keep(question, kept)
    if not finite:
        raise FederationError("update is not finite: NaN in the data, or local.lr is too high")
    return answer


def _descended(
    turn: Turn, work: Work, mechanism: Mechanism, methods: Sequence[Method]
) -> tuple[list[Tensor], Arrays]:
    """The site's own steps from the received model: the change they make, or their gradients; and
    its own model or part of one, where a method makes any."""
    site, question, local, space = *turn, turn.space
    optimizer = LocalOptimizer(local, question.options["lr"])
    gradient = mechanism.gradient(turn) or partial(
        gradient_of, space, site, whole=local.work == "gradient", loss=_own_loss(turn, methods)
    )
    corrections = [found for method in methods if (found := method.correction(turn)) is not None]
    augment = augmentation(site, question, mechanism.privacy)
    if methods and overrides(methods[-1], "descend"):
        if mechanism.per_example:
            raise Declined("a mechanism noises the loop's gradients, and a method makes its own")
        steps = LocalSteps(turn, work.batches, lambda index: gradient(index, augment), corrections)
        own = methods[-1].descend(turn, steps)
        return space.split(space.start - space.flat), own
    total: list[Tensor] = []
    coefficients = accumulation_coefficients(local, work.steps)
    batches = work.batches
    if local.work != "gradient":  # all that a site has is not to be in memory at once
        space.soon(site.data.train, batches)
    for step, (index, alpha) in enumerate(zip(batches, coefficients), 1):
        grads = gradient(index, augment)
        for correct in corrections:
            correct(grads)
        if local.send == "gradients":
            if not total:
                total = list(torch._foreach_mul(grads, alpha))
            else:
                torch._foreach_add_(total, grads, alpha=alpha)
            if step == work.steps:
                break  # nobody looks at the model after its last gradient
        optimizer.step(space.params, grads)
    if local.send == "gradients":
        return total, {}
    return space.split(space.start - space.flat), {}


def _own_loss(turn: Turn, methods: Sequence[Method]) -> BatchLoss | None:
    """The loss of the plan's own method, if it has one."""
    found = (method.loss(turn) for method in methods)
    return next((loss for loss in found if loss is not None), None)


def reported_loss(site: SiteContext, question: Question, space: Workspace) -> Arrays:
    """This site's mean loss at the model in `space`, in evaluation mode, if it is asked for."""
    if not question.options.get("report_loss"):
        return {}
    if mechanism_for(question).on:
        raise Declined("a loss without noise is not told beside a private answer")
    sums = count(space, [site.data.train], {})
    return {"loss": sums["loss"] / sums["samples"]}


def kept_after(turn: Turn, work: Work, mechanism: Mechanism) -> dict[str, np.ndarray]:
    """What a site keeps after this answer, besides control variates."""
    kept = dict(turn.site.recall(turn.question))
    if turn.local.work == "batches" and not work.fixed:
        kept["cursor"] = np.array(work.cursor)
    return kept | mechanism.kept(turn)


def gradient_of(
    space: Workspace,
    site: SiteContext,
    index: np.ndarray,
    augment: torch.Generator | None,
    whole: bool,
    loss: BatchLoss | None = None,
) -> list[Tensor]:
    """Mean gradient over these samples; over a whole data set in passes of bounded size. loss: of a
    batch, in place of the plan's."""
    data = site.data.train
    in_one = not whole or len(index) <= MICRO_BATCH or bool(space.properties.batch_dependent)
    if in_one or loss is not None or not space.loss_is_per_sample(data):
        return space.gradient(*space.batch(data, torch.from_numpy(index), augment), loss)
    total: list[Tensor] = []
    parts = np.array_split(index, -(-len(index) // MICRO_BATCH))
    space.soon(data, parts)
    for part in parts:
        grads = space.gradient(*space.batch(data, torch.from_numpy(part), augment))
        share = len(part) / len(index)
        if total:
            torch._foreach_add_(total, grads, alpha=share)
        else:
            total = list(torch._foreach_mul(grads, share))
    return total


def augmentation(site: SiteContext, question: Question, privacy: Privacy) -> torch.Generator | None:
    if site.data.train.transform is None and privacy.augmentations == 1:
        return None
    if site.secret_seed is None:
        return secret_generator()
    seed = int(site.generator("augment", question.round).integers(2**62))
    return torch.Generator().manual_seed(seed)


@contextmanager
def own_randomness(site: SiteContext, question: Question, space: Workspace) -> Iterator[None]:
    """Random layers draw from this site's generator; the process-wide one is left as it was.

    At a real site the plan's seed, which all know, must not tell them: a private clip rests on it.
    """
    if not space.serial:
        yield
        return
    if site.secret_seed is None:
        with secret_draws():
            yield
        return
    with torch.random.fork_rng():
        torch.manual_seed(derive(site.secret_seed, "layers", question.round, site.index))
        yield
