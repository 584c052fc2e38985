"""From a plan to the objects it stands for: data, problem, program, federation.

The same objects can be made by hand; see `examples/quickstart.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cupola.base.held_objects import is_absent, is_object
from cupola.base.importing import imported
from cupola.data import loading
from cupola.data.dataset import NO_LABEL, Dataset, FederatedData, SiteData, Source
from cupola.data.lazy import Owners
from cupola.data.partition import partition
from cupola.data.stored_rows import Rows, first_unusable
from cupola.data.transform import check_images, copy_steps, transforms
from cupola.errors import DataError, PlanError
from cupola.federation.program import Program
from cupola.federation.site import SiteContext, StateStore
from cupola.nn import losses
from cupola.nn.models import building
from cupola.training import plan_names
from cupola.training.batches import require_batches
from cupola.training.features import public_labels
from cupola.training.frozen import partly
from cupola.training.label_maps import label_map_of
from cupola.training.loop import Training
from cupola.training.methods import method_of
from cupola.training.methods.method import Method
from cupola.training.plan import Loss, Plan
from cupola.training.plan_objects import try_out
from cupola.training.workspace import Problem, TrainingHost

_FILES = ("public", "path", "folder")  # options of data sets that name files
SITES_CHECKED = 1000  # of a user's own making, before a run begins


def federated_data(plan: Plan) -> FederatedData:
    """The sites of a plan, made when asked for."""
    choice = plan.data
    seed = plan.seed if choice.partition_seed is None else choice.partition_seed
    source = _loaded(plan)
    if not isinstance(source, FederatedData):
        source = partition(source, choice.partition, seed)
    if choice.augment:
        source = transforms(list(choice.augment)).apply(source)
    if not isinstance(plan.privacy.augmentations, int):
        for steps in map(copy_steps, plan.privacy.augmentations):
            check_images(source, steps.steps if steps else ())
    return source


def partition_kind(plan: Plan) -> str:
    """How the data are cut into sites; those that were passed as sites are not."""
    if is_object(plan.data.name) and isinstance(_loaded(plan), FederatedData):
        return "as given"
    return plan.data.partition.kind


def with_public_data(plan: Plan, public: Callable[[str], Path]) -> Plan:
    """A plan whose public data are files of a coordinator: whoever hands a plan in has no say in
    what else is read there."""
    given = {key: plan.data.options[key] for key in _FILES if plan.data.options.get(key)}
    settings = {f"data.{key}": str(public(str(value))) for key, value in given.items()}
    return plan.change(settings) if settings else plan


def _loaded(plan: Plan) -> Source | Owners | FederatedData:
    choice = plan.data
    if ":" not in choice.name:
        return loading.load(choice.name, **choice.options)
    if is_object(choice.name):
        held: Source | Owners | FederatedData = imported(
            choice.name, f"data.name = '{choice.name}'", DataError
        )
        return held
    made = loading.made(choice.name, choice.options)
    if not isinstance(made, Source | Owners | FederatedData):
        raise DataError(
            f"{choice.name} gave a {type(made).__name__}; it must give a cupola.data Source "
            "(or Owners), or FederatedData if it makes the sites itself"
        )
    return made


def problem(plan: Plan, data: FederatedData | None = None) -> Problem:
    """Model, loss and kind of task; the model's initial weights come from the plan's seed."""
    data = federated_data(plan) if data is None else data
    options = plan.model.options
    if data.vocabulary is not None and "vocabulary" in building.options(plan.model.name):
        options.setdefault("vocabulary", data.vocabulary)
    if data.words and "words" in building.options(plan.model.name):
        options.setdefault("words", data.words)
    if data.kind == "language" and "padding" in building.options(plan.model.name):
        options.setdefault("padding", data.padding)
    if plan.model.name == "pretrained":
        options |= _source_options(plan, data)
    build = partial(
        building.build, plan.model.name, data.input_shape, data.classes, plan.seed, **options
    )
    if plan.loss is None:
        loss = losses.default_loss(data.kind, data.padding)
    else:
        loss = losses.find_loss(plan.loss.name, **_with_no_label(data, plan.loss))
    dtype = torch.float64 if plan.dtype == "float64" else torch.float32
    whole = Problem(
        build,
        loss,
        data.kind,
        data.classes,
        data.input_shape,
        device=plan.device,
        dtype=dtype,
        ignore=(*(() if data.padding is None else (data.padding,)), *data.uncounted),
        tokens=_tokens(plan, data, build),
        metrics={
            name: imported(path, f"evaluation.metrics.{name}")
            for name, path in (plan.evaluation.metrics or {}).items()
            if not is_absent(path)  # a model can be opened without; a run needs all
        },
        precision=plan.precision,
        device_noise=plan.device_noise,
    )
    return partly(whole, plan.trainable, plan.seed)


def _tokens(plan: Plan, data: FederatedData, build: Callable[[], nn.Module]) -> int | None:
    """How many token ids there are: the data's, or those that a model of transformers knows."""
    own = ":" in plan.model.name and not is_object(plan.model.name)
    if data.vocabulary is not None or not (own or plan.model.name == "huggingface"):
        return data.vocabulary
    return getattr(build(), "tokens", None)


def _source_options(plan: Plan, data: FederatedData) -> dict[str, Any]:
    """What a source model needs of the data: inputs as they are, and labels it is mapped by."""
    steps = [s if isinstance(s, str) else next(iter(s)) for s in plan.data.augment]
    if "normalise" in steps:
        raise PlanError(
            "data.augment: 'normalise' would be done twice; model = 'pretrained' normalises images "
            "as its source needs them"
        )
    if data.vocabulary is not None or data.kind != "classification":
        raise PlanError(
            f"model = 'pretrained' classifies images, series or numbers; {plan.data.name} is of "
            f"kind '{data.kind}'"
        )
    options, public = plan.model.options, data.public.get("validation")
    fixed = options.get("adapt") == "labels" and options.get("relabel") is None
    if not fixed or "labels" in options or not public:
        return {}
    return {"labels": public_labels(options, data.input_shape, data.classes, plan.seed, public)}


def _with_no_label(data: FederatedData, loss: Loss) -> dict[str, Any]:
    """The options of a loss; pixels without a label, or padding, do not count unless the plan says
    which."""
    options, ignored = loss.options, NO_LABEL if data.kind == "segmentation" else data.padding
    if ignored is not None and "ignore_index" in losses.options(loss.name):
        options.setdefault("ignore_index", ignored)
    return options


def host(plan: Plan) -> TrainingHost:
    """The sites' side of a plan."""
    plan_names.site_task(plan.task)  # a site knows a task once its module is imported
    data = federated_data(plan)
    from cupola.training.spending import book

    kind = CheckedHost if ":" in plan.data.name else TrainingHost
    made = problem(plan, data)
    try_out(plan, made, data)
    return kind(made, data, book(plan))


class CheckedHost(TrainingHost):
    """Sites made by the user's own code: their numbers are checked when a site is made."""

    def data(self, site: int) -> SiteData:
        held = super().data(site)
        for part in ("train", "validation", "test"):
            rows: Dataset = getattr(held, part)
            for what, values in (("inputs", rows.x), ("targets", rows.y)):
                # Inputs in files are checked once, when they are loaded: not for every question.
                wrong = None if isinstance(values, Rows) else first_unusable(values)
                if wrong is not None:
                    raise DataError(
                        f"site {site} ({self.sites.site_name(site)}): {part} {what} hold NaN or "
                        f"infinity, first in row {wrong}; correct these rows or leave them out"
                    )
        return held


def training(plan: Plan, of: TrainingHost | None = None) -> Training:
    """The federated training of a plan."""
    from cupola.training.spending import resolved

    of = host(plan) if of is None else of
    if isinstance(of, CheckedHost):
        for site in range(min(len(of), SITES_CHECKED)):
            of.data(site)
    made = Training(
        of.problem,
        sites=len(of),
        rounds=plan.rounds,
        seed=plan.seed,
        task=plan_names.site_task(plan.task),
        local=plan.local,
        server=plan.server,
        participation=plan.participation,
        evaluation=plan.evaluation,
        privacy=resolved(plan, of),
        sum=plan.sum,
        transforms=plan.transforms,
        method=own_method(plan),
        public=of.sites.public,
        site_splits=_splits(plan, of.sites),
        label_map=label_map_of(plan),
    )
    _require_computable(plan, of, made)
    return made


def own_method(plan: Plan) -> Method | None:
    """The plan's [method], if it has one."""
    choice = plan.method
    return None if choice is None else method_of({"name": choice.name, **choice.options})


def _require_computable(plan: Plan, of: TrainingHost, made: Training) -> None:
    """Refuse what sites could not compute, by their sizes or by the engine's mode."""
    if plan.task != "train":
        return
    require_batches(made, of.sites.sizes(np.arange(min(len(of), SITES_CHECKED))))
    if plan.engine.mode in ("auto", "one-by-one") or plan.engine.kind == "processes":
        return
    from cupola.training.batched.choose import possible

    ask = made.first_ask()
    mode = plan.engine.mode
    some = [i for i in range(min(len(of), SITES_CHECKED)) if len(of.data(i).train)][:8]
    sites = [
        SiteContext(i, of.data(i), made.space, StateStore(), plan.seed, mode=mode) for i in some
    ]
    if sites and not possible(sites, ask.question):
        raise PlanError(
            f"engine.mode = '{mode}': sites cannot be computed together in this form here (random "
            "or batch-dependent layers, inputs that stay in their files, or an unsupported "
            "choice); use 'auto'"
        )


def program(plan: Plan, of: TrainingHost, whole: Training) -> Program:
    """All of a plan: its training `whole`, and what follows from the federated model."""
    if plan.personalise is None:
        return whole
    from cupola.training.personalise.planned import personalisation

    found = personalisation(plan, whole, of.problem, _splits(plan, of.sites))
    for method in found.choice.federated():
        _require_computable(plan, of, found.of_all(method))
    return found


def _splits(plan: Plan, data: FederatedData) -> frozenset[str]:
    """What sites hold out, from the partition or a look at the first sites."""
    spec = plan.data.partition
    found = {split for split in ("validation", "test") if getattr(spec, split)}
    for i in range(min(len(data), 10)):
        site = data.site(i)
        found |= {split for split in ("validation", "test") if len(getattr(site, split))}
    return frozenset(found)
