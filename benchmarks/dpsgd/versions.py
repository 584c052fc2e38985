"""A DP-SGD step of this checkout and of another one, in turns, on batches of Poisson sizes.

    python benchmarks/dpsgd/versions.py --before PATH [--workloads cnn,resnet8] [--pairs 9]

PATH: another checkout, for example `git worktree add PATH COMMIT`. Every version runs in a process
of its own and makes the same steps (clipped sum, noise, step) on the same batches, whose sizes vary
about 256; a second process of the other version tells how much two equal ones differ (A/A), and one
makes plain SGD steps on the same batches. Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

EXPECTED, CLIP, RATE = 256, 1.0, 0.01
HERE = Path(__file__).resolve().parents[2]
WORKLOADS: dict[str, dict[str, Any]] = {
    "logistic": {"name": "linear", "input_shape": (60,), "classes": 10},
    "cnn": {"name": "cnn", "input_shape": (1, 28, 28), "classes": 62},
    "resnet8": {"name": "resnet8", "input_shape": (3, 32, 32), "classes": 10, "norm": "group"},
    "resnet8-kn": {"name": "resnet8", "input_shape": (3, 32, 32), "classes": 10, "norm": "kernel"},
    "transformer": {"name": "transformer", "input_shape": (20,), "classes": 1000},
    "lstm": {"name": "text_lstm", "input_shape": (25,), "classes": 2, "vocabulary": 1000},
}


def serve(workload: str, threads: int, plain: bool) -> None:
    """Make steps on batches of the sizes that a line of stdin names, and print their seconds."""
    import torch

    from cupola.nn import build, find_loss
    from cupola.privacy.persample import PerSample

    torch.set_num_threads(threads)
    options = WORKLOADS[workload]
    loss = find_loss("cross_entropy")
    module = build(seed=0, **options)
    chance = torch.Generator().manual_seed(0)
    shape, classes = options["input_shape"], options["classes"]
    tokens = any(isinstance(m, torch.nn.Embedding) for m in module.modules())
    many = 2 * EXPECTED
    if tokens:
        x = torch.randint(0, options.get("vocabulary", classes), (many, *shape), generator=chance)
    else:
        x = torch.randn(many, *shape, generator=chance)
    with torch.no_grad():
        targets = loss_shape(module, x[:1], many)
    y = torch.randint(0, classes, targets, generator=chance)
    engine = PerSample(module, loss)
    known = "expected" in inspect.signature(engine.clipped_sum).parameters
    more = {"expected": EXPECTED} if known else {}
    trained = [p for p in module.parameters() if p.requires_grad]

    def step(n: int) -> None:
        if plain:
            sums = torch.autograd.grad(loss(module(x[:n]), y[:n]).sum(), trained)
        else:
            sums = engine.clipped_sum(x[:n], y[:n], CLIP, **more).sums
        with torch.no_grad():
            for p, total in zip(trained, sums):
                noised = total if plain else total + torch.randn_like(p)
                p.sub_(noised.to(p), alpha=RATE / EXPECTED)

    step(EXPECTED)
    print("ready", flush=True)
    for line in sys.stdin:
        sizes = json.loads(line)
        start = time.perf_counter()
        for n in sizes:
            step(n)
        print(time.perf_counter() - start, flush=True)


def loss_shape(module: Any, x: Any, n: int) -> tuple[int, ...]:
    """Of n targets: one per sample, or per position of a language model."""
    output = module(x)
    return (n, *output.shape[1:-1])


class Version:
    """A checkout at work in a process of its own."""

    def __init__(self, checkout: Path, workload: str, threads: int, plain: bool = False) -> None:
        command = [sys.executable, __file__, "--serve", workload, "--threads", str(threads)]
        self.process = subprocess.Popen(
            [*command, *["--plain"] * plain],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(checkout / "src")},
        )
        self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a version stopped before its first step: see above")
        return line

    def seconds(self, sizes: list[int]) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(sizes) + "\n")
        self.process.stdin.flush()
        return float(self._line())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    import numpy as np

    chance = np.random.default_rng(7)
    before = Path(options.before).resolve()
    make = {"before": before, "after": HERE, "before again": before, "plain": HERE}
    sides = {
        name: Version(path, workload, options.threads, name == "plain")
        for name, path in make.items()
    }
    one = sides["before"].seconds([EXPECTED])
    steps = max(1, round(options.seconds / one))
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(options.pairs):
        sizes = [int(n) for n in chance.poisson(EXPECTED, steps)]
        for name, side in sides.items():
            found[name].append(side.seconds(sizes) / steps)
    for side in sides.values():
        side.close()

    def over(a: str, b: str) -> dict[str, float]:
        ratios = [x / y for x, y in zip(found[a], found[b])]
        each = {"median": median(ratios), "least": min(ratios), "most": max(ratios)}
        return {key: round(value, 3) for key, value in each.items()}

    result = {
        "seconds": {name: round(median(each), 5) for name, each in found.items()},
        "after over before": over("after", "before"),
        "before again over before (A/A)": over("before again", "before"),
        "after over plain": over("after", "plain"),
    }
    print(f"{workload}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", help="a checkout to compare with")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=2.0, help="aimed length of one timing")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads, options.plain)
        return
    if not options.before:
        parser.error("--before: which checkout to compare with?")
    document = {
        "settings": {"expected": EXPECTED, "pairs": options.pairs, "threads": options.threads},
        "load_before": os.getloadavg()[0],
        "workloads": {name: measure(name, options) for name in options.workloads.split(",")},
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
