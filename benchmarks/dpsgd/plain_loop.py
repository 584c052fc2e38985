"""A plain training loop made private: `cupola.privacy.make_private` against Opacus.

    python benchmarks/dpsgd/plain_loop.py [--workloads mlp,cnn] [--epochs 1] [--repeat 3]

Model, data, loop, target and clip are the same on all sides, taken in turn. Both draw Poisson
samples. Cupola's noise comes from the operating system, on a grid; Opacus' from torch's generator,
which is not meant for secrets (`secure_mode=True` wants the package torchcsprng). `--seed 1` gives
Cupola's repeatable noise, for a comparison of equals. The loop is timed apart from finding the
noise. The accountants are asked for the same steps: Opacus' PRV and RDP, and ours. Lines are
counted in the functions below that make a loop private. Needs Opacus. Prints one JSON document on
stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

from cupola.nn import build
from cupola.privacy import epsilon, make_private

ROWS, BATCH, EPSILON, DELTA, CLIP, RATE = 4096, 256, 3.0, 1e-5, 1.0, 0.1
WORKLOADS: dict[str, dict[str, Any]] = {
    "mlp": {"name": "mlp", "input_shape": (64,), "classes": 10},
    "cnn": {"name": "cnn", "input_shape": (1, 28, 28), "classes": 10},
    "resnet8": {"name": "resnet8", "input_shape": (3, 32, 32), "classes": 10, "norm": "group"},
}


def of_cupola(model, optimizer, loader, epochs, seed):  # type: ignore[no-untyped-def]
    private = make_private(
        model, optimizer, loader, epsilon=EPSILON, delta=DELTA, epochs=epochs, clip=CLIP, seed=seed
    )
    return private, private.epsilon


def of_opacus(model, optimizer, loader, epochs, seed):  # type: ignore[no-untyped-def] # noqa: ARG001
    from opacus import PrivacyEngine

    engine = PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=CLIP,
    )
    return private, engine.get_epsilon


def of_opacus_ghost(model, optimizer, loader, epochs, seed):  # type: ignore[no-untyped-def] # noqa: ARG001
    from opacus import PrivacyEngine

    engine = PrivacyEngine()
    model, optimizer, loss, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=epochs,
        max_grad_norm=CLIP,
        grad_sample_mode="ghost",
    )
    return (model, optimizer, loader, loss), engine.get_epsilon


def of_nobody(model, optimizer, loader, epochs, seed):  # type: ignore[no-untyped-def] # noqa: ARG001
    return (model, optimizer, loader), lambda delta: None  # noqa: ARG005


def loop(epochs: int, model: Any, optimizer: Any, loader: Any, loss: Any = F.cross_entropy) -> None:
    """The plain loop, the same for all; ghost clipping has a loss of its own."""
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss(model(x), y).backward()
            optimizer.step()


SIDES = {
    "plain": of_nobody,
    "cupola": of_cupola,
    "opacus, hooks": of_opacus,
    "opacus, ghost": of_opacus_ghost,
}


def once(side: str, workload: str, epochs: int, seed: int | None) -> tuple[float, float, Any]:
    """Seconds until the noise is found, seconds of the loop, and the epsilon it tells."""
    options = WORKLOADS[workload]
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, *options["input_shape"], generator=draw)
    y = torch.randint(0, options["classes"], (ROWS,), generator=draw)
    model: nn.Module = build(seed=0, **options).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = DataLoader(TensorDataset(x, y), batch_size=BATCH, shuffle=True)
    start = time.perf_counter()
    private, told = SIDES[side](model, optimizer, loader, epochs, seed)
    begun = time.perf_counter()
    loop(epochs, *private)
    return begun - start, time.perf_counter() - begun, told(DELTA)


def accountants(epochs: int) -> dict[str, Any]:
    """Epsilon of the same steps, rate and noise, as each accountant has it."""
    from opacus.accountants import PRVAccountant, RDPAccountant

    rate, steps = BATCH / ROWS, epochs * (ROWS // BATCH)
    found = []
    for noise in (0.7, 1.0, 2.0):
        row = {"noise_multiplier": noise, "rate": rate, "steps": steps}
        row["cupola"] = epsilon(rate=rate, noise_multiplier=noise, steps=steps, delta=DELTA)
        for name, kind in (("prv", PRVAccountant), ("rdp", RDPAccountant)):
            accountant = kind()
            accountant.history = [(noise, rate, steps)]
            row[f"opacus {name}"] = float(accountant.get_epsilon(DELTA))
        found.append(row)
    return {"rows": found}


def lines_of(function: Any) -> int:
    """Lines of code that a user writes around the loop."""
    body = inspect.getsource(function).splitlines()[1:]
    return sum(bool(line.strip()) for line in body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="mlp,cnn")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seed", type=int, default=None, help="of Cupola's noise; none: secure")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # of Opacus, on its own imports and on missing secure random
    found: dict[str, Any] = {"accountants": accountants(options.epochs), "loops": {}}
    for workload in options.workloads.split(","):
        taken: dict[str, list[float]] = {side: [] for side in SIDES}
        told: dict[str, Any] = {}
        found_noise: dict[str, float] = {}
        for turn in range(options.repeat + 1):  # the first warms up
            for side in SIDES:
                ready, seconds, told[side] = once(side, workload, options.epochs, options.seed)
                turns.say(f"{workload} {side}: {ready:.2f} s, {seconds:.2f} s")
                found_noise[side] = ready
                if turn:
                    taken[side].append(seconds)
        each = {side: median(times) for side, times in taken.items()}
        found["loops"][workload] = {
            "seconds of the loop": each,
            "seconds to find the noise": found_noise,
            "epsilon": {side: told[side] for side in SIDES if side != "plain"},
            "best of Opacus over Cupola": min(t for s, t in each.items() if "opacus" in s)
            / each["cupola"],
            "Cupola over plain": each["cupola"] / each["plain"],
        }
    found["lines around the loop"] = {
        side: lines_of(make) for side, make in SIDES.items() if make is not of_nobody
    }
    found["threads"] = torch.get_num_threads()
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
