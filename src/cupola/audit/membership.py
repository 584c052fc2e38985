"""Membership inference on the finished model: loss threshold, and likelihood ratio with shadows.

Members are training rows of sites that took part, the others are held-out rows. Shadow runs repeat
the plan, noise included, on random halves of both, always two halves that complement each other:
so every row is in just half of the shadow models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from cupola.audit.replayed_run import Step, Subject
from cupola.base.randomness import derive, generator
from cupola.data.dataset import Dataset, FederatedData, SiteData
from cupola.engines.in_process import InProcess
from cupola.errors import CupolaError
from cupola.federation.program import drive
from cupola.privacy.membership import (
    Attack,
    attack,
    likelihood_ratio,
    logit_confidence,
    loss_attack,
)
from cupola.training.choices import Evaluation
from cupola.training.loop import Training
from cupola.training.workspace import MODEL, TrainingHost, frozen_part

ROWS = 20_000  # of members and of others, at most, for the loss threshold
SMALL = 200_000  # parameters of a model that shadow runs are made for
SHADOW_ROWS = 100_000
SHADOWS = 16
PATIENCE = 60.0  # seconds that shadow runs may take unless they are asked for
BATCH = 1024


def membership_audit(
    subject: Subject, *, shadows: int | None, seed: int, step: Step | None = None
) -> dict[str, Any]:
    """Both attacks. shadows: runs for the likelihood ratio, 0 for none, None to decide by cost."""
    members, others = _members(subject, seed), _others(subject, seed)
    final = subject.models[-1]
    losses = [_losses(subject, final, rows) for rows in (members, others)]
    found: dict[str, Any] = {
        "members": len(losses[0]),
        "others": len(losses[1]),
        "held_out": "rows that sites hold out" if _sites_hold(subject) else "public test rows",
        "loss_threshold": _plain(loss_attack(*losses)),
        "likelihood_ratio": None,
    }
    many, why = _how_many(subject, shadows)
    if many:
        found["likelihood_ratio"] = {"shadows": many, **_plain(_lira(subject, many, seed, step))}
    found["without_likelihood_ratio"] = why
    return found


def _plain(found: Attack) -> dict[str, Any]:
    values = asdict(found)
    values["tpr"] = {f"{rate:g}": value for rate, value in found.tpr.items()}
    return values


# Rows


def _sites_hold(subject: Subject) -> bool:
    return any(len(subject.host.data(i).test) for i in subject.asked()[:10])


def _members(subject: Subject, seed: int) -> list[Dataset]:
    """Training rows of sites that took part, not too many, in random order."""
    return _some(subject, subject.asked(), "train", seed)


def _others(subject: Subject, seed: int) -> list[Dataset]:
    """Rows that nobody trained on: the same sites' own, else public ones."""
    if _sites_hold(subject):
        return _some(subject, subject.asked(), "test", seed)
    public = subject.program.public.get("test")
    if public is None or len(public) < 2:
        raise CupolaError(
            f"{subject.run.folder}: membership inference compares training rows with others, and "
            "there are no held-out rows; set a test share in the partition (test = 0.2)"
        )
    order = generator(seed, "audit others").permutation(len(public))[:ROWS]
    return [public.subset(order).plain()]


def _some(subject: Subject, sites: Sequence[int], part: str, seed: int) -> list[Dataset]:
    order = generator(seed, f"audit {part}").permutation(len(sites))
    found, held = [], 0
    for place in order:
        rows: Dataset = getattr(subject.host.data(sites[place]), part)
        if len(rows):
            found.append(rows.plain())
            held += len(rows)
        if held >= ROWS:
            break
    if held < 2:
        raise CupolaError(f"{subject.run.folder}: too few rows ({part}) to attack")
    return found


# Loss threshold


def _outputs(
    subject: Subject, model: Mapping[str, np.ndarray], rows: Sequence[Dataset]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs and targets, batch by batch."""
    space = subject.space
    space.load(model)
    space.module.eval()
    found = []
    try:
        for data in rows:
            for start in range(0, len(data), BATCH):
                x, y = space.batch(data, slice(start, start + BATCH))
                with torch.inference_mode():
                    found.append((space.module(x), y))
    finally:
        space.module.train()
    return found


def _losses(
    subject: Subject, model: Mapping[str, np.ndarray], rows: Sequence[Dataset]
) -> np.ndarray:
    """Loss of every row, in random order so that halves of them are alike."""
    loss = subject.space.problem.loss
    parts = [loss(output, y) for output, y in _outputs(subject, model, rows)]
    values = torch.cat(parts).double().cpu().numpy()
    return np.nan_to_num(generator(0, "audit order").permutation(values), nan=np.inf)


# Likelihood ratio


def _how_many(subject: Subject, wanted: int | None) -> tuple[int, str | None]:
    """Shadow runs to make, or why there are none."""
    if wanted == 0:
        return 0, "no shadow runs were asked for"
    if subject.space.problem.kind != "classification":
        return 0, "the likelihood ratio needs one class for every row"
    size = subject.space.flat.numel()
    if size > SMALL:
        return 0, f"the model has {size:,} parameters; shadow runs are for up to {SMALL:,}"
    rows = int(subject.host.sites.sizes().sum())
    if rows > SHADOW_ROWS:
        return 0, f"there are {rows:,} training rows; shadow runs are for up to {SHADOW_ROWS:,}"
    many = SHADOWS if wanted is None else wanted
    takes = many * float(subject.run.result.get("seconds") or 0.0)
    if wanted is None and takes > PATIENCE:
        return 0, f"{many} shadow runs would take about {takes:,.0f} s; ask for them (--shadows)"
    return many, None


def _lira(subject: Subject, shadows: int, seed: int, step: Step | None) -> Attack:
    """Every site's rows and its part of the held-out ones, in halves that complement each other."""
    members = [subject.host.data(i).train for i in range(subject.program.sites)]
    took_part = set(subject.asked())
    total = sum(len(m) for i, m in enumerate(members) if i in took_part)
    pool = _joined(_others(subject, seed))
    order = generator(seed, "audit pool").permutation(len(pool))[: max(total, 2)]
    shares = np.array_split(order, len(members))
    rows = [_joined([m, pool.subset(s)], m) for m, s in zip(members, shares)]
    sizes = [len(r) for r in rows]
    random = generator(seed, "audit halves")
    models, masks = [], []
    for pair in range(shadows // 2):
        half = [random.permutation(n) < n // 2 + random.integers(2) * (n % 2) for n in sizes]
        for number, chosen in enumerate((half, [~h for h in half])):
            datas = [r.subset(np.flatnonzero(h)) for r, h in zip(rows, chosen)]
            models.append(_shadow(subject, datas, derive(seed, "shadow", 2 * pair + number)))
            masks.append(np.concatenate(chosen))
            if step is not None:
                step("shadow runs", len(models), shadows)
    judged = [r.plain() for r in rows if len(r)]
    scores = np.stack([_confidence(subject, m, judged) for m in (*models, subject.models[-1])])
    ratio = likelihood_ratio(scores[-1], scores[:-1], np.stack(masks))
    own = np.concatenate([np.arange(n) < len(m) for n, m in zip(sizes, members)])
    present = np.concatenate([np.full(n, i in took_part) for i, n in enumerate(sizes)])
    mixed = random.permutation(len(own))
    ratio, own, present = ratio[mixed], own[mixed], present[mixed]
    return attack(ratio[own & present], ratio[~own])


def _joined(parts: Sequence[Dataset], like: Dataset | None = None) -> Dataset:
    """Rows of several data sets, model-ready; augmented like one of them."""
    x = torch.cat([p.inputs() for p in parts])
    y = torch.cat([p.y for p in parts])
    return Dataset(x, y, None if like is None else like.transform)


def _shadow(subject: Subject, datas: Sequence[Dataset], seed: int) -> dict[str, np.ndarray]:
    """The final model of the plan's training on other rows."""
    program = subject.program
    sites = FederatedData.from_arrays(
        [SiteData(d) for d in datas],
        kind=subject.host.sites.kind,
        classes=subject.host.sites.classes,
        input_shape=subject.host.sites.input_shape,
    )
    repeated = Training(
        program.problem,
        sites=program.sites,
        rounds=subject.done,
        seed=seed,
        task=program.task,
        local=program.local,
        server=program.server,
        participation=program.participation,
        evaluation=Evaluation(every=subject.done),
        privacy=program.privacy.model_copy(update={"budget": None}),
    )
    with InProcess(TrainingHost(program.problem, sites), seed=seed) as federation:
        start, frozen = repeated.start(), frozen_part(subject.models[-1])
        state = drive(repeated, federation, replace(start, arrays=start.arrays | frozen))
    kept = (*MODEL, "frozen/")
    return {n: a for n, a in state.arrays.items() if n.startswith(kept)}


def _confidence(
    subject: Subject, model: Mapping[str, np.ndarray], rows: Sequence[Dataset]
) -> np.ndarray:
    """Logit confidence of every row's own class."""
    parts = _outputs(subject, model, rows)
    output = torch.cat([o for o, _ in parts]).double().cpu().numpy()
    labels = torch.cat([y for _, y in parts]).long().cpu().numpy()
    binary = output.ndim == 1 or output.shape[1] == 1
    if binary:
        return logit_confidence(output.reshape(len(labels)), labels, binary=True)
    return logit_confidence(output, labels)
