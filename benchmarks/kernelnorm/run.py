"""Cost of kernel normalisation: time and memory of forward and backward, batch 32.

    python benchmarks/kernelnorm/run.py [--workloads layer,resnet8] [--repeat 7] [--threads 2]

Per workload: all sides in one process, in turn, A B C A B C ...; then each side's peak memory, in
processes of its own: of tensors (exact), and of the process (which scatters with what the allocator
keeps: the median of three). Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import sides
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

LIMITS = {"time over group": 1.35, "memory over group": 1.25, "unfold over kernel": 4.0}


def peak(workload: str, side: str) -> tuple[float, float]:
    """MiB above what was held before: of tensors in a pass, and of the process in two passes."""
    step = sides.step(workload, side)
    resident = turns.peak_resident(step)
    return turns.peak_tensors(step), resident


def memory(workload: str, side: str, threads: int) -> dict[str, float]:
    """`peak` in three processes of its own."""
    command = [sys.executable, __file__, "--threads", str(threads), "--peak", workload, side]
    found = [
        subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
        for _ in range(3)
    ]
    tensors, resident = zip(*(map(float, line.split()) for line in found))
    return {"memory_mb": median(tensors), "resident_mb": median(resident)}


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times, memory and ratios of one workload."""
    steps = {side: sides.step(workload, side) for side in sides.SIDES}
    found = turns.take_turns(workload, steps, options.repeat, options.seconds)
    for side in sides.SIDES:
        found[side] |= memory(workload, side, options.threads)
    return {"sides": found, "ratios": ratios(found)}


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What the benchmark is about: medians over turns of ratios within a turn, and of memory."""
    result = {}
    pairs = [
        (a, b) for b in ("group", "batch") for a in ("kernel", "kernel, no dropout", "unfold")
    ] + [("unfold", "kernel"), ("unfold, copied", "kernel")]
    for a, b in pairs:
        for kind in ("wall", "cpu"):
            result[f"{a} over {b}, {kind}"] = turns.ratio(found[a][kind], found[b][kind])
        for kind, key in (("memory", "memory_mb"), ("resident", "resident_mb")):
            result[f"{a} over {b}, {kind}"] = found[a][key] / found[b][key]
    return {key: round(value, 3) for key, value in result.items()}


def main() -> None:
    parser = turns.parser(__doc__, sides.WORKLOADS, seconds=0.5)
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
        known=sides.WORKLOADS,
        batch=sides.BATCH,
        limits=LIMITS,
    )


if __name__ == "__main__":
    main()
