"""Cost of a private round of reprogramming against full fine-tuning, at one site, in one run.

    python benchmarks/reprogram/run.py [--workloads lite0-96,resnet50-224] [--batch 32] [--repeat 5]

A round: per-sample gradients of a batch, clipped, summed, noised, one step; weights are loaded
before. Sides take turns in one process; peak memory, above what is held between rounds, is of each
side in a process of its own. Bytes are those of what is trained, one way. Needs the sources'
weights. Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cupola.nn import build, find_loss
from cupola.privacy.noise import source
from cupola.privacy.persample import PerSample
from cupola.training.mechanisms.dp_sgd import noised_mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

LIMITS = {"time over full": 0.6, "memory over full": 0.3}
WORKLOADS: dict[str, dict[str, Any]] = {
    "lite0-96": {"source": "efficientnet-lite0", "size": 96},
    "lite0-128": {"source": "efficientnet-lite0", "size": 128},
    "resnet50-128": {"source": "resnet50", "size": 128},
    "resnet50-224": {"source": "resnet50", "size": 224},
}
#: Full fine-tuning with BatchNorm still (the paper's parameters) and folded: both are fair.
SIDES: dict[str, dict[str, Any]] = {
    "reprogram": {"adapt": "reprogram"},
    "head": {"adapt": "head"},
    "full": {"adapt": "full"},
    "full, folded": {"adapt": "full", "norms": "folded"},
}
#: For glibc: what is freed goes back to the system, so that what a process holds is what it uses.
FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
CLIP, NOISE, RATE = 1.0, 1.0, 0.15


def parameters(workload: str, side: str) -> int:
    module = build("pretrained", (3, 32, 32), 10, 1, **WORKLOADS[workload], **SIDES[side])
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def step(workload: str, side: str, batch: int) -> Callable[[], None]:
    """A round; where only the head is trained, on features that are computed before."""
    module = build("pretrained", (3, 32, 32), 10, 1, **WORKLOADS[workload], **SIDES[side])
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(batch, 3, 32, 32, generator=generator)
    y = torch.randint(0, 10, (batch,), generator=generator)
    if module.fixed:
        with torch.no_grad():
            x = torch.cat([module.features(part) for part in x.split(16)])
    trained = [p for p in module.parameters() if p.requires_grad]
    engine = PerSample(module, find_loss("cross_entropy"))
    random = source(0, "privacy noise", 1, 0)

    def once() -> None:
        sums = engine.clipped_sum(x, y, CLIP).sums
        flat = torch.cat([s.reshape(-1) for s in sums]).numpy()
        noised = torch.from_numpy(noised_mean(flat, CLIP, NOISE, batch, random)).float()
        with torch.no_grad():
            for p, change in zip(trained, noised.split([p.numel() for p in trained])):
                p.sub_(change.view(p.shape), alpha=RATE)

    once()  # book-keeping is tried once, which is no part of a round
    return once


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    sides = {side: step(workload, side, options.batch) for side in SIDES}
    found = turns.take_turns(workload, sides, options.repeat, options.seconds)
    del sides
    for side, each in found.items():
        each["memory_mb"] = memory(workload, side, options)
        each["bytes_up"] = 4 * parameters(workload, side)
    return {"sides": found, "ratios": ratios(found)}


def memory(workload: str, side: str, options: argparse.Namespace) -> float:
    """Peak of a round in a process of its own."""
    same = ["--batch", str(options.batch), "--threads", str(options.threads)]
    command = [sys.executable, __file__, *same, "--peak", workload, side]
    result = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, **FREED_AT_ONCE}
    )
    return float(result.stdout)


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Reprogramming over the cheaper of the two ways of full fine-tuning."""
    full = min(("full", "full, folded"), key=lambda side: found[side]["cpu_seconds"])
    own, other = found["reprogram"], found[full]
    least = min(found[side]["memory_mb"] for side in ("full", "full, folded"))
    return {
        "time over full, wall": round(turns.ratio(own["wall"], other["wall"]), 3),
        "time over full, cpu": round(turns.ratio(own["cpu"], other["cpu"]), 3),
        "memory over full": round(own["memory_mb"] / least, 3),
        "bytes over full": round(own["bytes_up"] / found["full"]["bytes_up"], 5),
        "head's time over full, cpu": round(
            float(np.median(found["head"]["cpu"]) / np.median(other["cpu"])), 6
        ),
    }


def main() -> None:
    parser = turns.parser(__doc__, list(WORKLOADS), seconds=0.0)
    parser.add_argument("--batch", type=int, default=32, help="images of a round")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(turns.peak_resident(step(*options.peak, options.batch)))
        return
    turns.report(
        options,
        parser,
        lambda name: measure(name, options),
        known=list(WORKLOADS),
        batch=options.batch,
        limits=LIMITS,
    )


if __name__ == "__main__":
    main()
