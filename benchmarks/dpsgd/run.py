"""Cost of a DP-SGD step: Cupola against plain SGD and both modes of Opacus, batch 256, two cores.

    python benchmarks/dpsgd/run.py [--workloads cnn,resnet8] [--repeat 7] [--seconds 2]

Per workload: all sides in one process, in turn, A B C D A B C D ...; then each side's peak memory,
in a process of its own. DP sides clip, sum, add noise and step; plain SGD has no noise to add.
Needs Opacus. Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import sides
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

LIMITS = {"time over plain": 1.3, "Opacus over Cupola": 2.0, "memory over plain": 1.5}


def label(side: str, piece: int | None) -> str:
    return side if piece in (None, sides.BATCH) else f"{side}, {piece} at a time"


def times(workload: str, repeat: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Seconds of one step of every mode of every side, taken in turn."""
    modes = [mode for found in sides.MODES.values() for mode in found]
    steps = {label(side, piece): sides.step(workload, side, piece) for side, piece in modes}
    reference = sides.step(workload, "cupola", 32).sums()
    deviations = {
        name: sides.deviation(step.sums(), reference)
        for name, step in steps.items()
        if step.private
    }
    found = turns.take_turns(workload, steps, repeat, seconds)
    for name, deviation in deviations.items():
        found[name]["deviation"] = deviation
    return found


def peak(workload: str, side: str, piece: int | None) -> float:
    """MiB that two steps take above what the process held before them."""
    return turns.peak_resident(sides.step(workload, side, piece))


def memory(workload: str, side: str, piece: int | None, timeout: float) -> float | None:
    """`peak` in a process of its own."""
    arguments = ["--peak", workload, side, str(piece or 0)]
    result = subprocess.run(
        [sys.executable, __file__, *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    if result.returncode:
        turns.say(f"  {workload} {side}: {(result.stderr.strip().splitlines() or ['no word'])[-1]}")
        return None
    return float(result.stdout)


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times, memory and ratios of one workload; of each side its better mode."""
    found = times(workload, options.repeat, options.seconds)
    for modes in sides.MODES.values():
        for side, piece in modes:
            found[label(side, piece)]["memory_mb"] = memory(workload, side, piece, options.timeout)
    best = {
        name: min((label(*mode) for mode in modes), key=lambda n: found[n]["seconds"])
        for name, modes in sides.MODES.items()
    }
    return {"modes": found, "best": best, "ratios": ratios(found, best)}


def ratios(found: dict[str, dict[str, Any]], best: dict[str, str]) -> dict[str, float]:
    """What the benchmark is about, by wall and by processor time."""
    result: dict[str, float] = {}
    own, plain = found[best["cupola"]], found[best["plain"]]
    for kind in ("wall", "cpu"):
        other = {name: found[mode][kind] for name, mode in best.items()}
        mine = other["cupola"]
        opacus = list(map(min, other["opacus hooks"], other["opacus ghost"]))
        result |= {
            f"cupola over plain, {kind}": turns.ratio(mine, other["plain"]),
            f"cupola over plain in pieces, {kind}": turns.ratio(mine, other["plain in pieces"]),
            f"better opacus over cupola, {kind}": turns.ratio(opacus, mine),
        }
    if own["memory_mb"] and plain["memory_mb"]:
        result["cupola over plain, memory"] = own["memory_mb"] / plain["memory_mb"]
    return {key: round(value, 3) for key, value in result.items()}


def main() -> None:
    parser = turns.parser(__doc__, sides.WORKLOADS, seconds=1.0)
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a process may take")
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    if options.peak:
        workload, side, piece = options.peak
        print(peak(workload, side, int(piece) or None))
        return
    turns.report(
        options,
        parser,
        lambda name: measure(name, options),
        known=sides.WORKLOADS,
        batch=sides.BATCH,
        limits=LIMITS,
        packages=("torch", "opacus"),
    )


if __name__ == "__main__":
    main()
