"""One step of training on a batch: plain SGD, Cupola, and Opacus in its two modes.

Every side starts from the same model and data. A DP side gives the clipped sum of the batch; noise
is then added and the step made by the same code for all. `piece` is how many samples a side takes
at a time, for those that can.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cupola.nn import build, find_loss
from cupola.privacy.persample import PerSample

BATCH = 256
CLIP, NOISE, RATE = 1.0, 1.0, 0.01
WORKLOADS: dict[str, dict[str, Any]] = {
    "logistic": {"name": "linear", "input_shape": (60,), "classes": 10},
    "cnn": {"name": "cnn", "input_shape": (1, 28, 28), "classes": 62},
    "resnet8": {"name": "resnet8", "input_shape": (3, 32, 32), "classes": 10, "norm": "group"},
}
#: Modes of each side: the samples it takes at a time; None is the side's own choice.
MODES: dict[str, list[tuple[str, int | None]]] = {
    "plain": [("plain", BATCH)],
    "plain in pieces": [("plain", 32)],
    "cupola": [("cupola", None)],
    "opacus hooks": [("hooks", BATCH), ("hooks", 32)],
    "opacus ghost": [("ghost", BATCH), ("ghost", 32)],
}

loss = find_loss("cross_entropy")


@dataclass
class Step:
    """One training step, and the gradient it takes: its sum, clipped on a DP side."""

    module: nn.Module
    sums: Callable[[], list[Tensor]]
    private: bool

    def __call__(self) -> None:
        sums = self.sums()
        with torch.no_grad():
            for p, total in zip(self.module.parameters(), sums):
                if self.private:
                    total.add_(torch.randn_like(total), alpha=NOISE * CLIP)
                p.sub_(total, alpha=RATE / BATCH)


def example(workload: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Model and batch, the same for every side."""
    options = WORKLOADS[workload]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(BATCH, *options["input_shape"], generator=generator)
    y = torch.randint(0, options["classes"], (BATCH,), generator=generator)
    return build(seed=0, **options), x, y


def step(workload: str, side: str, piece: int | None) -> Step:
    """A side's step on a workload."""
    module, x, y = example(workload)
    make = {"plain": _plain, "cupola": _cupola, "hooks": _hooks, "ghost": _ghost}[side]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Opacus on its own imports and on missing secure random
        return Step(module, make(module, x, y, piece), side != "plain")


def _pieces(x: Tensor, y: Tensor, piece: int | None) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(piece or BATCH), y.split(piece or BATCH)))


def _plain(
    module: nn.Module, x: Tensor, y: Tensor, piece: int | None
) -> Callable[[], list[Tensor]]:
    parameters, batches = list(module.parameters()), _pieces(x, y, piece)

    def sums() -> list[Tensor]:
        total: list[Tensor] = []
        for a, b in batches:
            found = torch.autograd.grad(loss(module(a), b).sum(), parameters)
            if total:
                torch._foreach_add_(total, found)
            else:
                total = list(found)
        return total

    return sums


def _cupola(
    module: nn.Module, x: Tensor, y: Tensor, piece: int | None
) -> Callable[[], list[Tensor]]:
    persample = PerSample(module, loss, microbatch=piece)
    return lambda: persample.clipped_sum(x, y, CLIP).sums


def _hooks(
    module: nn.Module, x: Tensor, y: Tensor, piece: int | None
) -> Callable[[], list[Tensor]]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    hooked = GradSampleModule(module, loss_reduction="sum")
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=RATE),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
        loss_reduction="sum",
    )
    batches = _pieces(x, y, piece)

    def sums() -> list[Tensor]:
        for p in module.parameters():
            p.summed_grad = None  # type: ignore[attr-defined]
        for a, b in batches:
            loss(hooked(a), b).sum().backward()
            optimizer.clip_and_accumulate()
            for p in module.parameters():
                p.grad = p.grad_sample = None  # type: ignore[attr-defined]
        return [p.summed_grad for p in module.parameters()]  # type: ignore[attr-defined]

    return sums


def _ghost(
    module: nn.Module, x: Tensor, y: Tensor, piece: int | None
) -> Callable[[], list[Tensor]]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    hooked = GradSampleModuleFastGradientClipping(
        module, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=RATE),
        noise_multiplier=0.0,
        max_grad_norm=CLIP,
        expected_batch_size=BATCH,
        loss_reduction="sum",
    )
    criterion = DPLossFastGradientClipping(
        hooked, optimizer, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum"
    )
    batches = _pieces(x, y, piece)

    def sums() -> list[Tensor]:
        total: list[Tensor] = []
        for a, b in batches:
            hooked.enable_hooks()
            optimizer.zero_grad(set_to_none=True)
            criterion(hooked(a), b).backward()
            found = [p.grad for p in module.parameters() if p.grad is not None]
            if total:
                torch._foreach_add_(total, found)
            else:
                total = found
        return total

    return sums


def deviation(a: list[Tensor], b: list[Tensor]) -> float:
    """|a - b| / |b| over all parameters."""
    difference = math.sqrt(sum(float((s - t).square().sum()) for s, t in zip(a, b)))
    return difference / math.sqrt(sum(float(t.square().sum()) for t in b))
