"""Does a plan equal centralised training? (Utility preservation, dissertation 004, chapter 5.)

A static look at algorithm, optimizer, model and loss gives the answer and the failing conditions; a
numerical probe in float64 on a few samples confirms it, or overrules it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from cupola.data.dataset import Dataset, FederatedData, SiteData
from cupola.engines.in_process import InProcess
from cupola.errors import PlanError
from cupola.federation.program import drive
from cupola.nn.module_properties import loss_is_batch_dependent
from cupola.training.centralised import centralised
from cupola.training.choices import Evaluation, Participation, Privacy, Sum
from cupola.training.loop import Training
from cupola.training.workspace import TrainingHost, Workspace

PROBE_ROUNDS = 3
PROBE_SITES = 6
PROBE_SAMPLES = 24
EQUAL = 1e-9  # float64 runs that are equal differ by far less, others by far more
LOOKED_AT = 1000  # sites whose sizes are compared


@dataclass(frozen=True)
class Condition:
    """One requirement, whether it holds, and why not."""

    name: str
    holds: bool
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """The conditions, and the largest difference of any weight that the probe found.

    difference is relative to the largest weight; None if no probe was made, or none could be.
    """

    conditions: tuple[Condition, ...]
    difference: float | None = None

    @property
    def expected(self) -> bool:
        """What the conditions say."""
        return all(c.holds for c in self.conditions)

    @property
    def preserved(self) -> bool:
        """Equal to centralised training, by the conditions and by the probe."""
        return self.expected and (self.difference is None or self.difference <= EQUAL)

    @property
    def failing(self) -> list[Condition]:
        return [c for c in self.conditions if not c.holds]


def check(training: Training, data: FederatedData, probe: bool = True) -> Verdict:
    """Whether this training equals centralised training on the pooled data."""
    sizes = np.array([len(data.site(i).train) for i in range(min(len(data), LOOKED_AT))])
    reasons = _reasons(training, data, sizes[sizes > 0])
    conditions = tuple(Condition(name, not reason, reason) for name, reason in reasons)
    return Verdict(conditions, _probe(training, data) if probe else None)


def _reasons(
    training: Training, data: FederatedData, sizes: np.ndarray
) -> Iterator[tuple[str, str]]:
    """Every condition, and why it fails; empty where it holds."""
    yield "all sites take part", _participation(training)
    yield "one local update per round", _algorithm(training, sizes)
    yield "batches are centralised batches", _batches(training, sizes)
    yield "mean weighted by samples", _weighting(training, sizes)
    yield "linear optimizer at the site", _optimizer(training)
    levels = "trainable.level: some sites train less"
    yield "all sites train the same part", levels if training.levels is not None else ""
    free = "server.upcycle: every second round extrapolates and trains nowhere"
    yield "every round trains", free if training.server.upcycle is not None else ""
    yield from _model(training, data)
    own = training.method
    altered = "" if own is None or not own.alters else f"{own.key}: {own.alters}"
    yield "plain descent and a plain mean", altered
    how = " and ".join(step.describe() for step in training.transforms)
    yield "updates as they are", f"transforms: sent {how}" if how else ""
    yield "no noise", f"{training.mechanism.key} adds noise" if training.privacy.on else ""


def _participation(training: Training) -> str:
    choice = training.participation
    if choice.kind != "all":
        return f"participation.kind = '{choice.kind}' leaves sites out; 'all' is needed"
    slow = choice.stragglers or choice.dropouts
    return "stragglers and drop-outs leave work out" if slow else ""


def _algorithm(training: Training, sizes: np.ndarray) -> str:
    local = training.local
    if local.control_variates:
        return "local.control_variates correct the gradients"
    if local.work == "gradient":
        return ""
    many = local.batches
    if local.work == "epochs":
        many = local.epochs * max((-(-int(n) // local.batch_size) for n in sizes), default=1)
    more = f"sites make up to {many} local steps per round; use fedfgd or fedsmb"
    return more if many > 1 else ""


def _batches(training: Training, sizes: np.ndarray) -> str:
    """The sites' mini-batches together must be what an epoch of centralised batches would be."""
    local = training.local
    if local.work != "batches" or not len(sizes):
        return ""
    if len(set(sizes)) > 1:
        return "sites of unequal size run through their data at different speeds"
    if sizes[0] % local.batch_size:
        return f"sites of {sizes[0]} samples do not divide into batches of {local.batch_size}"
    return ""


def _weighting(training: Training, sizes: np.ndarray) -> str:
    local, server = training.local, training.server
    if local.weighting == "uniform" and len(set(sizes)) > 1:
        return "local.weighting = 'uniform' with sites of unequal size"
    if local.send != "change":
        return ""
    if server.optimizer != "sgd":
        return f"the coordinator's {server.optimizer} acts on changes, not gradients"
    if training.server_lr(1) != 1.0:
        return "server.lr other than 1 rescales the sites' steps"
    if server.momentum or server.weight_decay:
        return "momentum or weight decay at the coordinator needs local.send = 'gradients'"
    return ""


def _optimizer(training: Training) -> str:
    local = training.local
    if local.optimizer != "sgd":
        return f"local.optimizer = '{local.optimizer}' is not linear in the gradient; use 'sgd'"
    forgotten = "local.momentum is forgotten between rounds; use server.momentum"
    return forgotten if local.momentum else ""


def _model(training: Training, data: FederatedData) -> Iterator[tuple[str, str]]:
    space = Workspace(training.problem)
    dependent = ", ".join(space.properties.batch_dependent)
    random = ", ".join(space.properties.random)
    yield "batch-independent model", f"batch-dependent: {dependent}" if dependent else ""
    held = _first_held(data)
    if held is not None and held.transform is not None:
        random = ", ".join(filter(None, [random, "augmentation"]))
    yield "deterministic model", f"random: {random}" if random else ""
    if held is None:
        return
    x, y = space.batch(held, slice(0, 4))
    with torch.no_grad():
        output = space.module(x)
    mixed = loss_is_batch_dependent(training.problem.loss, output.cpu(), y.cpu())
    reason = "the loss of a sample depends on the others in its batch"
    yield "batch-independent loss", reason if mixed else ""


def _first_held(data: FederatedData) -> Dataset | None:
    sites = (data.site(i).train for i in range(min(len(data), LOOKED_AT)))
    return next((train for train in sites if len(train)), None)


def _probe(training: Training, data: FederatedData) -> float | None:
    """A short federated run against its centralised twin, both in float64; None where the plan's
    method cannot do with as few sites (robust rules need a number of them)."""
    problem = replace(training.problem, dtype=torch.float64, device="cpu")
    if training.levels is not None:  # they name sites that the probe has not
        whole = problem.trainable.model_copy(update={"level": ()})
        problem = replace(problem, trainable=whole)
    small = _small(data)
    # Several batches stay several, one stays one.
    held = _first_held(data)
    several = held is not None and len(held) > training.local.batch_size
    batch = PROBE_SAMPLES // 3 if several else PROBE_SAMPLES
    try:
        short = replace(
            training,
            problem=problem,
            sites=len(small),
            rounds=PROBE_ROUNDS,
            local=training.local.model_copy(update={"batch_size": batch}),
            evaluation=Evaluation(every=PROBE_ROUNDS + 1),
            participation=_fitting(training, len(small)),
            privacy=Privacy(),
            sum=Sum(),
            public={},
            site_splits=frozenset(),
            label_map=None,
        )
    except PlanError:
        if training.method is None:
            raise
        return None
    host = TrainingHost(problem, small)
    with InProcess(host, seed=short.seed, mode="one-by-one", workers=1) as federation:
        federated = drive(short, federation).arrays
    central = list(islice(centralised(short, small), PROBE_ROUNDS))[-1][1]
    names = [n for n in central if n.startswith("model/")]
    scale = max(float(np.abs(central[n]).max()) for n in names)
    return max(float(np.abs(central[n] - federated[n]).max()) for n in names) / scale


def _small(data: FederatedData) -> FederatedData:
    """A few samples of a few sites."""
    held = (data.site(i).train for i in range(min(len(data), LOOKED_AT)))
    some = list(islice((train for train in held if len(train)), PROBE_SITES))
    sites = [SiteData(train.subset(slice(0, PROBE_SAMPLES))) for train in some]
    return FederatedData.from_arrays(
        sites, kind=data.kind, classes=data.classes, input_shape=data.input_shape
    )


def _fitting(training: Training, sites: int) -> Participation:
    """Participation that a handful of sites can have."""
    choice = training.participation
    if choice.kind == "at-most-once":
        return choice.model_copy(update={"kind": "fraction", "count": max(1, sites // 2)})
    if choice.count is not None:
        return choice.model_copy(update={"count": min(choice.count, max(1, sites // 2))})
    return choice
