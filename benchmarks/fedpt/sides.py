"""What is measured: what one site does in a round of FedPT, at every share that the paper trains.

A site makes one step of SGD with momentum on all its images, 100 as the paper's sites have of
CIFAR-10: it loads what came, computes the gradient, steps, and answers its change.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cupola.data import Dataset, FederatedData, SiteData
from cupola.engines import InProcess
from cupola.federation import Question
from cupola.nn import build, find_loss
from cupola.training import Evaluation, Local, Problem, Training, TrainingHost
from cupola.training.choices import Trainable
from cupola.training.frozen import partly
from cupola.training.local import train
from cupola.training.workspace import Workspace

IMAGES = 100
#: Model, input, classes; what is frozen, by the published share that stays trainable (Tables 1, 2).
#: The paper's counts for CIFAR-10 are those of a head for 100 classes; it prints 26.25 for 26.45.
STAGES = tuple(f"stage{n}.*.conv?" for n in (4, 3, 2, 1))
WORKLOADS: dict[str, dict[str, Any]] = {
    "crop_resnet18": {
        "model": ("crop_resnet18", (3, 24, 24), 100),
        "frozen": {
            share: STAGES[:n] for n, share in enumerate(("100", "26.45", "8.07", "3.47", "2.16"))
        },
    },
    "cnn": {
        "model": ("cnn", (1, 28, 28), 62),
        "frozen": {"100": (), "4.97": ("dense",)},
    },
}


@dataclass
class Site:
    """A site with its workspace, and the question of a round. Called, it answers."""

    engine: InProcess
    question: Question

    def __call__(self) -> Any:
        return train(self.engine.context(0), self.question)

    @property
    def space(self) -> Workspace:
        """Made when it is first asked for, and the frozen part with it."""
        space = self.engine.context(0).workspace
        assert isinstance(space, Workspace)
        return space

    @property
    def held(self) -> int:
        """Bytes between rounds, data left out: the model, and the model as it came."""
        kept = {
            t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in _kept(self.space)
        }
        return sum(kept.values()) + sum(a.nbytes for a in self.question.arrays.values())


def _kept(space: Workspace) -> Iterator[Tensor]:
    yield from space.module.parameters()
    yield from (space.flat, space.start)


def site(workload: str, side: str, images: int = IMAGES) -> Callable[[], Site]:
    """Makes the site; what the coordinator needs to ask is made, and gone, before."""
    name, shape, classes = WORKLOADS[workload]["model"]
    whole = Problem(
        partial(build, name, shape, classes, 0),
        find_loss("cross_entropy"),
        "classification",
        classes,
        shape,
        "cpu",
    )
    problem = partly(whole, Trainable(freeze=WORKLOADS[workload]["frozen"][side]), 0)
    local = Local(batch_size=images, lr=0.01, momentum=0.9)
    training = Training(problem, 1, 1, local=local, evaluation=Evaluation(every=2))
    ask = training.ask(training.start())
    assert ask is not None
    question = ask.question
    del training, ask
    gc.collect()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, *shape, generator=generator)
    y = torch.randint(0, classes, (images,), generator=generator)
    data = FederatedData.from_arrays(
        [SiteData(Dataset(x, y))], kind="classification", classes=classes, input_shape=shape
    )
    host = TrainingHost(problem, data)
    return lambda: Site(InProcess(host, mode="one-by-one", workers=1), question)
