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

from cupola.data import Dataset, FederatedData, SiteData
from cupola.federation import InProcess, drive
from cupola.learn.centralised import centralised
from cupola.learn.choices import Evaluation, Participation, Privacy, Sum
from cupola.learn.training import Training
from cupola.learn.workspace import TrainingHost, Workspace
from cupola.nn.inspect import loss_is_batch_dependent

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

    difference is relative to the largest weight; None if no probe was made.
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
    conditions = tuple(_conditions(training, data))
    return Verdict(conditions, _probe(training, data) if probe else None)


def _conditions(training: Training, data: FederatedData) -> Iterator[Condition]:
    yield _participation(training)
    sizes = np.array([len(data.site(i).train) for i in range(min(len(data), LOOKED_AT))])
    sizes = sizes[sizes > 0]
    yield _algorithm(training, sizes)
    yield _batches(training, sizes)
    yield _weighting(training, sizes)
    yield _optimizer(training)
    reason = "trainable.level: some sites train less" if training.levels is not None else ""
    yield Condition("all sites train the same part", not reason, reason)
    free = training.server.upcycle is not None
    reason = "server.upcycle: every second round extrapolates and trains nowhere" if free else ""
    yield Condition("every round trains", not free, reason)
    yield from _model(training, data)
    noisy = f"{training.mechanism.key} adds noise" if training.privacy.on else ""
    yield Condition("no noise", not noisy, noisy)


def _participation(training: Training) -> Condition:
    choice = training.participation
    reason = ""
    if choice.kind != "all":
        reason = f"participation.kind = '{choice.kind}' leaves sites out; 'all' is needed"
    elif choice.stragglers or choice.dropouts:
        reason = "stragglers and drop-outs leave work out"
    return Condition("all sites take part", not reason, reason)


def _algorithm(training: Training, sizes: np.ndarray) -> Condition:
    local, name = training.local, "one local update per round"
    if local.control_variates:
        return Condition(name, False, "local.control_variates correct the gradients")
    if local.work == "gradient":
        return Condition(name, True)
    many = local.batches
    if local.work == "epochs":
        many = local.epochs * max((-(-int(n) // local.batch_size) for n in sizes), default=1)
    if many > 1:
        reason = f"sites make up to {many} local steps per round; use fedfgd or fedsmb"
        return Condition(name, False, reason)
    return Condition(name, True)


def _batches(training: Training, sizes: np.ndarray) -> Condition:
    """The sites' mini-batches together must be what an epoch of centralised batches would be."""
    local, name = training.local, "batches are centralised batches"
    if local.work != "batches" or not len(sizes):
        return Condition(name, True)
    if len(set(sizes)) > 1:
        reason = "sites of unequal size run through their data at different speeds"
        return Condition(name, False, reason)
    if sizes[0] % local.batch_size:
        reason = f"sites of {sizes[0]} samples do not divide into batches of {local.batch_size}"
        return Condition(name, False, reason)
    return Condition(name, True)


def _weighting(training: Training, sizes: np.ndarray) -> Condition:
    name = "mean weighted by samples"
    if training.local.weighting == "uniform" and len(set(sizes)) > 1:
        return Condition(name, False, "local.weighting = 'uniform' with sites of unequal size")
    if training.local.send == "change" and training.server.optimizer != "sgd":
        reason = f"the coordinator's {training.server.optimizer} acts on changes, not gradients"
        return Condition(name, False, reason)
    if training.local.send == "change" and training.server_lr(1) != 1.0:
        return Condition(name, False, "server.lr other than 1 rescales the sites' steps")
    if training.local.send == "change" and (
        training.server.momentum or training.server.weight_decay
    ):
        reason = "momentum or weight decay at the coordinator needs local.send = 'gradients'"
        return Condition(name, False, reason)
    return Condition(name, True)


def _optimizer(training: Training) -> Condition:
    local, name = training.local, "linear optimizer at the site"
    if local.optimizer != "sgd":
        reason = f"local.optimizer = '{local.optimizer}' is not linear in the gradient; use 'sgd'"
        return Condition(name, False, reason)
    if local.momentum:
        reason = "local.momentum is forgotten between rounds; use server.momentum"
        return Condition(name, False, reason)
    return Condition(name, True)


def _model(training: Training, data: FederatedData) -> Iterator[Condition]:
    space = Workspace(training.problem)
    found = space.properties
    dependent, random = ", ".join(found.batch_dependent), ", ".join(found.random)
    yield Condition(
        "batch-independent model",
        not dependent,
        f"batch-dependent: {dependent}" if dependent else "",
    )
    held = _first_held(data)
    if held is not None and held.transform is not None:
        random = ", ".join(filter(None, [random, "augmentation"]))
    yield Condition("deterministic model", not random, f"random: {random}" if random else "")
    if held is None:
        return
    x, y = space.batch(held, slice(0, 4))
    with torch.no_grad():
        output = space.module(x)
    mixed = loss_is_batch_dependent(training.problem.loss, output.cpu(), y.cpu())
    reason = "the loss of a sample depends on the others in its batch" if mixed else ""
    yield Condition("batch-independent loss", not mixed, reason)


def _first_held(data: FederatedData) -> Dataset | None:
    sites = (data.site(i).train for i in range(min(len(data), LOOKED_AT)))
    return next((train for train in sites if len(train)), None)


def _probe(training: Training, data: FederatedData) -> float:
    """A short federated run against its centralised twin, both in float64."""
    problem = replace(training.problem, dtype=torch.float64, device="cpu")
    if training.levels is not None:  # they name sites that the probe has not
        whole = problem.trainable.model_copy(update={"level": ()})
        problem = replace(problem, trainable=whole)
    small = _small(data)
    # Several batches stay several, one stays one.
    held = _first_held(data)
    several = held is not None and len(held) > training.local.batch_size
    batch = PROBE_SAMPLES // 3 if several else PROBE_SAMPLES
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
    )
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
