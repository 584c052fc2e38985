"""What the three ways to evaluate a kernel-normalised network make of its accuracy and its loss.

    python benchmarks/kernelnorm/evaluation.py                # all; DenseNet takes half of the time
    python benchmarks/kernelnorm/evaluation.py --models resnet8 --seeds 1
    python benchmarks/kernelnorm/evaluation.py --table        # evaluation.json in Markdown

The networks of the tables in docs/kernelnorm.md, a quarter as wide, and DenseNet-20x16 as it is are
trained on CIFAR-10 at 16x16 pixels with the published dropout, with the same settings for all,
which were not tuned.
Then the same weights are evaluated with expected, random and no dropout of the statistics. Random
is the mean of `DRAWS` passes, as accuracy and as loss, not an average of outputs. Results go to
evaluation.json beside this file, which a second call goes on with.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cupola import data as sources
from cupola.nn import build
from cupola.nn.kernelnorm import Evaluation, KernelNorm, KNConv

RESULTS = Path(__file__).with_name("evaluation.json")
IMAGES, TEST, PIXELS, EPOCHS, BATCH, RATE, DRAWS = 2_500, 2_000, 16, 10, 32, 0.02, 5
#: Name -> options; dropout of the statistics is that of the publication.
MODELS: dict[str, dict[str, Any]] = {
    "vgg6": {"width": 16, "kernel_dropout": 0.1},
    "resnet8": {"width": 16, "kernel_dropout": 0.1, "last_dropout": 0.25},
    "resnet9": {"width": 16, "kernel_dropout": 0.05, "last_dropout": 0.25},
    "knresnet13": {"width": 16, "kernel_dropout": 0.1, "last_dropout": 0.5},
    "densenet20x16": {"kernel_dropout": 0.1, "last_dropout": 0.5},
}
MODES: tuple[Evaluation, ...] = get_args(Evaluation)


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training and test images and labels."""
    held = sources.load("cifar10", variant="10k")
    found: list[Tensor] = []
    for part, wanted in ((held.train, IMAGES), (held.test, TEST)):
        few = part.subset(torch.arange(wanted))
        found += [F.avg_pool2d(few.inputs(), 32 // PIXELS), few.y]
    return found[0], found[1], found[2], found[3]


def trained(name: str, seed: int, x: Tensor, y: Tensor) -> nn.Module:
    """SGD with momentum and a cosine schedule, mirrored images."""
    torch.manual_seed(seed)
    module = build(name, (3, PIXELS, PIXELS), 10, seed, norm="kernel", **MODELS[name])
    steps = EPOCHS * (len(x) // BATCH)
    optimizer = torch.optim.SGD(module.parameters(), RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH)[: len(x) // BATCH]:
            mirrored = torch.rand(len(rows), 1, 1, 1) < 0.5
            images = torch.where(mirrored, x[rows].flip(-1), x[rows])
            optimizer.zero_grad()
            F.cross_entropy(module(images), y[rows]).backward()
            optimizer.step()
            schedule.step()
    return module.eval()


def evaluated(module: nn.Module, mode: Evaluation, x: Tensor, y: Tensor) -> dict[str, float]:
    """Accuracy in per cent and cross-entropy."""
    for layer in module.modules():
        if isinstance(layer, KNConv | KernelNorm):
            layer.evaluation = mode
    passes = []
    with torch.no_grad():
        for _ in range(DRAWS if mode == "random" else 1):
            outputs = torch.cat([module(part) for part in x.split(250)])
            right = (outputs.argmax(1) == y).double().mean()
            passes.append((100 * float(right), float(F.cross_entropy(outputs, y))))
    accuracy, loss = (statistics.fmean(column) for column in zip(*passes))
    return {"accuracy": accuracy, "loss": loss}


def table(found: dict[str, Any]) -> str:
    """Means over seeds; differences from random by seed, with their standard deviation."""
    lines = [
        "| network | seeds | random (published) | expected (default) | off "
        "| expected less random | off less random |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name in MODELS:
        runs = [found[key] for key in sorted(found) if key.split(",")[0] == name]
        if not runs:
            continue

        def shown(mode: str, runs: list[Any] = runs) -> str:
            both = [statistics.fmean(r[mode][k] for r in runs) for k in ("accuracy", "loss")]
            return f"{both[0]:.1f} %, {both[1]:.2f}"

        def apart(mode: str, runs: list[Any] = runs) -> str:
            gaps = [r[mode]["accuracy"] - r["random"]["accuracy"] for r in runs]
            spread = statistics.stdev(gaps) if len(gaps) > 1 else math.nan
            return f"{statistics.fmean(gaps):+.2f} ± {spread:.2f}"

        modes = " | ".join(map(shown, ("random", "expected", "off")))
        lines.append(f"| `{name}` | {len(runs)} | {modes} | {apart('expected')} | {apart('off')} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if given.table:
        print(table(found))
        return
    torch.set_num_threads(1)
    x, y, x_test, y_test = data()
    for name in given.models:
        for seed in given.seeds:
            key = f"{name}, seed {seed}"
            if key in found:
                continue
            module = trained(name, seed, x, y)
            found[key] = {mode: evaluated(module, mode, x_test, y_test) for mode in MODES}
            print(json.dumps({key: found[key]}), flush=True)
            RESULTS.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")
    print(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
