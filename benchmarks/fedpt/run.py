"""Cost of a training round at a site when a part of the model is frozen (FedPT, Tables 1, 2, 4).

    python benchmarks/fedpt/run.py [--workloads crop_resnet18,cnn] [--repeat 7] [--threads 1]

Per workload: the sites of all levels in one process, in turn, A B C A B C ...; then each level's
peak memory, in a process of its own: of tensors (exact: the model, what came, and all that a round
takes), of the process in a round, and of the process while it makes its model (the frozen
part from its seed). Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import sides
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

LIMITS = {"2.16 over 100, time": 0.80, "2.16 over 100, memory": 0.90}
KINDS = {"memory": "memory_mb", "resident": "resident_mb"}


def peak(workload: str, side: str) -> tuple[float, float, float]:
    """MiB: of tensors in a round, of the process in a round, and of it while the site is made."""
    make = sides.site(workload, side)
    turns.resident(reset=True)
    site = make()
    site.held  # makes the workspace
    making = turns.resident()
    site()
    tensors = site.held / 2**20 + turns.peak_tensors(site)
    turns.resident(reset=True)
    site()
    return tensors, turns.resident(), making


def memory(workload: str, side: str, threads: int) -> dict[str, float]:
    """`peak` in a process of its own, which gives memory back when it is free."""
    result = subprocess.run(
        [sys.executable, __file__, "--threads", str(threads), "--peak", workload, side],
        capture_output=True, text=True, timeout=300, check=True,
        env={**os.environ, "CUPOLA_KEEP_MEMORY": "0"},
    )  # fmt: skip
    tensors, resident, making = map(float, result.stdout.split())
    return {"memory_mb": tensors, "resident_mb": resident, "making_mb": making}


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times, memory and ratios of one workload."""
    levels = list(sides.WORKLOADS[workload]["frozen"])
    sites = {side: sides.site(workload, side)() for side in levels}
    found = turns.take_turns(workload, sites, options.repeat, options.seconds)
    for side in levels:
        found[side] |= memory(workload, side, options.threads)
    return {"sides": found, "ratios": ratios(found, levels), "falls": falls(found, levels)}


def ratios(found: dict[str, dict[str, Any]], levels: list[str]) -> dict[str, float]:
    """Of every level to the full model, and to the level before it."""
    pairs = [(side, levels[0]) for side in levels[1:]]
    pairs += [(b, a) for a, b in pairwise(levels) if a != levels[0]]
    result = {}
    for a, b in pairs:
        for kind in ("wall", "cpu"):
            result[f"{a} over {b}, {kind}"] = turns.ratio(found[a][kind], found[b][kind])
        for kind, key in KINDS.items():
            result[f"{a} over {b}, {kind}"] = found[a][key] / found[b][key]
    return {key: round(value, 3) for key, value in result.items()}


def falls(found: dict[str, dict[str, Any]], levels: list[str]) -> dict[str, bool]:
    """Whether time and memory are less at every level than at the one before."""
    made = ratios(found, levels)
    kinds = ("wall", "cpu", *KINDS)
    return {
        kind: all(made[f"{b} over {a}, {kind}"] < 1 for a, b in pairwise(levels)) for kind in kinds
    }


def main() -> None:
    parser = turns.parser(__doc__, list(sides.WORKLOADS), seconds=0.5)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(*peak(*options.peak))
        return
    turns.report(
        options,
        parser,
        lambda name: measure(name, options),
        known=list(sides.WORKLOADS),
        batch=sides.SAMPLES,
        limits=LIMITS,
    )


if __name__ == "__main__":
    main()
