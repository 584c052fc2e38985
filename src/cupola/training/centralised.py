"""Centralised training on the pooled data: the slow, obvious reference for a federated run.

It sees the samples that the sites would use, in the same order: step t of a round is one batch, the
union of the sites' batches t. Where the conditions of utility preservation hold (see `utility`), it
ends with the same model as the federated run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from cupola.base.randomness import derive
from cupola.data.dataset import Dataset, FederatedData
from cupola.federation.message import Arrays, Question
from cupola.federation.site import SiteContext, StateStore
from cupola.training.batches import share_out
from cupola.training.loop import Training
from cupola.training.optimizers import server_step
from cupola.training.participation import draw
from cupola.training.workspace import Workspace


def centralised(training: Training, data: FederatedData) -> Iterator[tuple[dict[str, Any], Arrays]]:
    """The record and the model after each round of centralised training; rounds that ask no site
    (upcycling) have no counterpart."""
    space = Workspace(training.problem)
    store = StateStore()
    optimizer = _optimizer(training, space)
    slots: Arrays = {}
    for round in range(1, training.training_rounds + 1):
        rate = training.local.lr * training.local.schedule.factor(round, training.training_rounds)
        samples = 0
        if training.maps.is_before(round):
            training.maps.remake(space, data)
        torch_state = torch.random.get_rng_state()
        torch.manual_seed(derive(training.seed, "layers", round))
        for x, y in _batches(training, data, space, store, round):
            samples += len(x)
            grads = space.gradient(x, y)
            if optimizer is None:
                slots = _adaptive_step(training, space, grads, slots, round)
                continue
            gradients_sent = training.local.send == "gradients"
            optimizer.param_groups[0]["lr"] = training.server_lr(round) if gradients_sent else rate
            for parameter, grad in zip(space.params, grads):
                parameter.grad = grad
            optimizer.step()
        torch.random.set_rng_state(torch_state)
        record: dict[str, Any] = {"round": round, "sites": 1, "failed": {}, "samples": samples}
        arrays = space.arrays()
        last = round == training.training_rounds
        if round % training.evaluation.every == 0 or last:
            for split, held in training.public.items():
                if len(held) and not (split == "test" and training.evaluation.on == "sites"):
                    record[split] = training.judge(arrays, held, matrix=last)
            if training.evaluation.on != "public":
                tests = (data.site(i).test for i in range(len(data)))
                record["sites_test"] = training.judge(arrays, *tests, matrix=last)
            if training.evaluation.train:
                trained = (data.site(i).train for i in range(len(data)))
                record["sites_train"] = training.judge(arrays, *trained, matrix=last)
        yield record, arrays


def _batches(
    training: Training, data: FederatedData, space: Workspace, store: StateStore, round: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The union of the sites' batches, step by step."""
    local = training.local
    question = Question("train", options={"local": {}}, step=round, round=round, confirmed=round)
    asked = draw(training.participation, training.sites, training.seed, round)
    contexts = [SiteContext(i, data.site(i), None, store, training.seed) for i in asked]
    contexts = [site for site in contexts if len(site.data.train)]
    if not contexts:
        return
    work = share_out(contexts, question, local)
    if local.work == "batches":
        for site, item in zip(contexts, work):
            site.keep(question, {"cursor": torch.tensor(item.cursor).numpy()})
    batches = [item.batches for item in work]
    for t in range(max(item.steps for item in work)):
        parts = [
            space.batch(site.data.train, torch.from_numpy(own[t]), _generator(site, round))
            for site, own in zip(contexts, batches)
            if t < len(own)
        ]
        yield torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def _generator(site: SiteContext, round: int) -> torch.Generator | None:
    train: Dataset = site.data.train
    if train.transform is None:
        return None
    return torch.Generator().manual_seed(int(site.generator("twin augment", round).integers(2**62)))


def _optimizer(training: Training, space: Workspace) -> torch.optim.Optimizer | None:
    """torch's own optimizer; None where the coordinator's adaptive step takes its place."""
    local, server = training.local, training.server
    if local.send == "gradients":
        if server.optimizer != "sgd":
            return None
        return torch.optim.SGD(
            space.params, lr=1.0, momentum=server.momentum, weight_decay=server.weight_decay
        )
    if local.optimizer == "adam":
        return torch.optim.Adam(
            space.params, betas=local.betas, eps=local.eps, weight_decay=local.weight_decay
        )
    return torch.optim.SGD(
        space.params,
        lr=1.0,
        momentum=local.momentum,
        weight_decay=local.weight_decay,
        nesterov=local.nesterov,
    )


def _adaptive_step(
    training: Training, space: Workspace, grads: list[torch.Tensor], slots: Arrays, round: int
) -> Arrays:
    model = {n: p.detach().cpu().numpy() for n, p in space.pairs()}
    update = {n: g.cpu().double().numpy() for n, g in zip(space.names, grads)}
    moved, slots = server_step(training.server, training.server_lr(round), model, update, slots)
    with torch.no_grad():
        for name, parameter in space.pairs():
            parameter.copy_(torch.from_numpy(moved[name]))
    return slots
