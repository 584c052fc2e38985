"""Cupola's side: masked sums as a plan runs them, with a clock on every party."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cupola.data import Dataset, FederatedData, SiteData
from cupola.engines import InProcess
from cupola.federation import Contribution, Failure, Question, SiteContext, Spec, task
from cupola.federation.federation import Total
from cupola.federation.ledger import COMPENSATOR
from cupola.federation.message import encode_contribution
from cupola.federation.site import Task
from cupola.nn import build, find_loss
from cupola.secure import Masked, compensator_host, simulated_parties
from cupola.training import Evaluation, Local, Privacy, Problem, Training, TrainingHost
from cupola.training.choices import Sum

IMAGE, CLASSES, BATCH = (3, 32, 32), 10, 32


@dataclass
class Clock:
    """Seconds by the wall and of the processor, added up."""

    wall: float = 0.0
    cpu: float = 0.0
    _start: tuple[float, float] = field(default=(0.0, 0.0), repr=False)

    def __enter__(self) -> None:
        self._start = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self._start[0]
        self.cpu += time.process_time() - self._start[1]

    def less(self, *others: Clock, over: int = 1) -> dict[str, float]:
        """What is left without these, divided."""
        return {
            kind: (getattr(self, kind) - sum(getattr(other, kind) for other in others)) / over
            for kind in ("wall", "cpu")
        }


class Timed(InProcess):
    """An engine that counts the time of its parties, and that of turning answers to bytes."""

    def __init__(self, host: Any, clock: Clock, packing: Clock, **options: Any) -> None:
        super().__init__(host, workers=1, **options)
        self.clock, self.packing = clock, packing

    def _answer(self, task: Task, question: Question, site: int) -> Contribution | Failure:
        with self.clock:
            answer = super()._answer(task, question, site)
        if isinstance(answer, Contribution):
            with self.packing:
                encode_contribution(answer)
        return answer


@dataclass
class Times:
    """Of one masked sum: everything, the sites (`inner`: until they had what they hide), the
    compensator, and the bytes of both, which a plain sum has, too."""

    whole: Clock = field(default_factory=Clock)
    sites: Clock = field(default_factory=Clock)
    inner: Clock = field(default_factory=Clock)
    packing: Clock = field(default_factory=Clock)
    compensator: Clock = field(default_factory=Clock)
    masks: Clock = field(default_factory=Clock)
    bytes_up: int = 0  # from one site, as the ledger counts them
    bytes_compensator: int = 0  # to and from

    def coordinator(self) -> dict[str, float]:
        return self.whole.less(self.sites, self.packing, self.compensator, self.masks)


def masked_sum(
    host: Any, question: Question, sites: int, inner: Callable[[Clock], Any]
) -> tuple[Total, Times]:
    """A masked sum over all sites. inner(clock): makes the inner task count its time."""
    times = Times()
    parties = simulated_parties("benchmark", seed=1, sites=sites)
    engine = Timed(host, times.sites, times.packing, parties=parties.member)
    for site in range(sites):
        parties.member(site)  # keys are made once, before a study
    compensator = compensator_host(parties.roster.to_json(), seed=1)
    third = Timed(compensator, times.compensator, times.masks)
    inner(times.inner)
    with Masked(engine, third, parties.roster) as federation, times.whole:
        total = federation.sum(question, range(sites))
    ledger = federation.ledger
    times.bytes_up = ledger.up[0]
    times.bytes_compensator = ledger.up[COMPENSATOR] + ledger.down[COMPENSATOR]
    if len(total.sites) < sites:
        raise RuntimeError(f"not every site answered: {total.failed}")
    return total, times


# A vector of each site, nothing else


class Vectors:
    """Site i holds row i."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def data(self, site: int) -> np.ndarray:
        return self.values[site]

    def workspace(self) -> None:
        return None


@task("benchmark vector")
def vector(site: SiteContext, question: Question) -> Contribution:  # noqa: ARG001
    return Contribution({"x": site.data})


def vectors(values: np.ndarray, bound: float) -> tuple[np.ndarray, dict[str, Any]]:
    """The masked sum of rows with a 64-bit modulus: total, and seconds of each party."""
    sites = len(values)
    expects = {"x": Spec(values.shape[1:], "float", bound=bound, bits=64)}
    question = Question("benchmark vector", expects=expects)
    total, times = masked_sum(Vectors(values), question, sites, lambda _: None)
    parts = {
        "site": times.sites.less(over=sites),
        "site's bytes": times.packing.less(over=sites),
        "compensator": times.compensator.less(),
        "coordinator": times.coordinator(),
    }
    return total.arrays["x"], parts


# A round of training


def training(sites: int, samples: int) -> tuple[TrainingHost, Question, int]:
    """One epoch of ResNet-18 with clipped updates: host, its first question, parameters."""
    generator = torch.Generator().manual_seed(1)

    def images() -> SiteData:
        x = torch.randint(0, 256, (samples, *IMAGE), dtype=torch.uint8, generator=generator)
        return SiteData(Dataset(x, torch.randint(0, CLASSES, (samples,), generator=generator)))

    held = [images() for _ in range(sites)]
    data = FederatedData.from_arrays(
        held, kind="classification", classes=CLASSES, input_shape=IMAGE
    )
    problem = Problem(
        lambda: build("resnet18", IMAGE, CLASSES, seed=1),
        find_loss("cross_entropy"), "classification", CLASSES, IMAGE, "cpu",
    )  # fmt: skip
    program = Training(
        problem,
        sites,
        1,
        local=Local(work="epochs", epochs=1, batch_size=BATCH, lr=0.01, weighting="uniform"),
        evaluation=Evaluation(every=10**6),
        privacy=Privacy(mechanism="central", noise_multiplier=1.0),
        sum=Sum(kind="masked"),
    )
    ask = program.ask(program.start())
    assert ask is not None
    parameters = sum(int(np.prod(array.shape)) for array in ask.question.arrays.values())
    return TrainingHost(problem, data), ask.question, parameters


def counted(task: Task) -> Callable[[Clock], None]:
    """Makes a task count its time."""
    plain = task.plain

    def set_clock(clock: Clock) -> None:
        def timed(site: SiteContext, question: Question) -> Contribution:
            with clock:
                return plain(site, question)

        task.plain = timed

    return set_clock
