"""Cost of a training round at a site when a part of the model is frozen (FedPT, Tables 1, 2, 4).

    python benchmarks/fedpt/run.py [--workloads crop_resnet18,cnn] [--repeat 7] [--images 100]

Per workload: the sites of all levels in one process, in turn, A B C A B C ...; then each level's
peak memory, in a process of its own: of tensors (exact: the model, what came, and all that a round
takes), of the process in a round, and of the process while it makes its model (the frozen
part from its seed). Also the operations of a round, which are counted and thus do not scatter.
Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import sides
import torch

from cupola.training.frozen import share

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

LIMITS = {"2.16 over 100, time": 0.80, "2.16 over 100, memory": 0.90}
KINDS = {"memory": "memory_mb", "resident": "resident_mb", "operations": "operations"}


def alone(workload: str, side: str, images: int) -> dict[str, float]:
    """What is counted in a process of its own. MiB: of tensors in a round, of the process in a
    round, and of it while the site is made; operations of a round; per cent that is trained."""
    make = sides.site(workload, side, images)
    turns.resident(reset=True)
    site = make()
    trained = 100 * share(site.space.module).trainable
    found = {"trained_percent": trained, "making_mb": turns.resident()}
    site()
    turns.resident(reset=True)
    site()
    found["resident_mb"] = turns.resident()
    # Instruments take memory themselves, so they come after.
    found["memory_mb"] = site.held / 2**20 + turns.peak_tensors(site)
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counted:
        site()
    return found | {"operations": float(counted.get_total_flops())}


def own_process(workload: str, side: str, options: argparse.Namespace) -> dict[str, float]:
    """`alone`, in one that gives memory back as soon as it is free."""
    numbers = ["--threads", str(options.threads), "--images", str(options.images)]
    result = subprocess.run(
        [sys.executable, __file__, *numbers, "--alone", workload, side],
        capture_output=True, text=True, timeout=600, check=True,
        env={**os.environ, "CUPOLA_KEEP_MEMORY": "0", "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    return json.loads(result.stdout)


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times, memory and ratios of one workload."""
    levels = list(sides.WORKLOADS[workload]["frozen"])
    sites = {side: sides.site(workload, side, options.images)() for side in levels}
    found = turns.take_turns(workload, sites, options.repeat, options.seconds)
    for side in levels:
        found[side] |= own_process(workload, side, options)
    return {"sides": found, "ratios": ratios(found, levels), "falls": falls(found, levels)}


def ratios(found: dict[str, dict[str, Any]], levels: list[str]) -> dict[str, float]:
    """Of every level to the full model, and to the level before it."""
    pairs = [(side, levels[0]) for side in levels[1:]]
    pairs += [(b, a) for a, b in pairwise(levels) if a != levels[0]]
    result = {}
    for a, b in pairs:
        for kind in ("wall", "cpu"):
            result[f"{a} over {b}, {kind}"] = turns.ratio(found[a][kind], found[b][kind])
        # Others on the machine make turns longer, never shorter.
        result[f"{a} over {b}, least cpu"] = min(found[a]["cpu"]) / min(found[b]["cpu"])
        for kind, key in KINDS.items():
            result[f"{a} over {b}, {kind}"] = found[a][key] / found[b][key]
    return {key: round(value, 3) for key, value in result.items()}


def falls(found: dict[str, dict[str, Any]], levels: list[str]) -> dict[str, bool]:
    """Whether time and memory are less at every level than at the one before."""
    made = ratios(found, levels)
    kinds = ("wall", "cpu", "least cpu", *KINDS)
    return {
        kind: all(made[f"{b} over {a}, {kind}"] < 1 for a, b in pairwise(levels)) for kind in kinds
    }


def main() -> None:
    parser = turns.parser(__doc__, list(sides.WORKLOADS), seconds=0.5)
    parser.add_argument("--images", type=int, default=sides.IMAGES, help="of a site")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.alone:
        print(json.dumps(alone(*options.alone, options.images)))
        return
    turns.report(
        options,
        parser,
        lambda name: measure(name, options),
        known=list(sides.WORKLOADS),
        batch=options.images,
        limits=LIMITS,
    )


if __name__ == "__main__":
    main()
