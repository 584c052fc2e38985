"""Cost of a DP-SGD step: Cupola against plain SGD and both modes of Opacus, batch 256, two cores.

    python benchmarks/dpsgd/run.py [--workloads cnn,resnet8] [--repeat 7] [--seconds 2]

Per workload: all sides in one process, in turn, A B C D A B C D ...; then each side's peak memory,
in a process of its own. DP sides clip, sum, add noise and step; plain SGD has no noise to add.
Needs Opacus. Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import sides
import torch

THREADS = 2
LIMITS = {"time over plain": 1.3, "Opacus over Cupola": 2.0, "memory over plain": 1.5}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def label(side: str, piece: int | None) -> str:
    return side if piece in (None, sides.BATCH) else f"{side}, {piece} at a time"


def times(workload: str, repeat: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Seconds of one step of every mode of every side, taken in turn."""
    steps, found = {}, {}
    for modes in sides.MODES.values():
        for side, piece in modes:
            name = label(side, piece)
            steps[name] = sides.step(workload, side, piece)
            found[name] = {"wall": [], "cpu": []}
    reference = sides.step(workload, "cupola", 32).sums()
    for name, step in steps.items():
        if step.private:
            found[name]["deviation"] = sides.deviation(step.sums(), reference)
    counts = {}
    for name, step in steps.items():  # warm up, and find how many steps fill the time
        step()
        start = time.perf_counter()
        step()
        counts[name] = max(1, min(1000, int(seconds / (time.perf_counter() - start))))
    for _ in range(repeat):
        for name, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(counts[name]):
                step()
            found[name]["wall"].append((time.perf_counter() - wall) / counts[name])
            found[name]["cpu"].append((time.process_time() - cpu) / counts[name])
    for name, each in found.items():
        each |= {"seconds": median(each["wall"]), "cpu_seconds": median(each["cpu"])}
        say(
            f"  {workload} {name}: {1e3 * each['seconds']:.3g} ms ({1e3 * each['cpu_seconds']:.3g})"
        )
    return found


def peak(workload: str, side: str, piece: int | None) -> float:
    """MiB that two steps take above what the process held before them."""
    step = sides.step(workload, side, piece)
    before = _resident(reset=True)
    for _ in range(2):
        step()
    return _resident() - before


def _resident(*, reset: bool = False) -> float:
    """Peak resident size, MiB; the present one where the peak can be reset."""
    status = Path("/proc/self/status")
    if not status.exists():
        factor = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor / 2**20
    if reset:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def memory(workload: str, side: str, piece: int | None, timeout: float) -> float | None:
    """`peak` in a process of its own."""
    arguments = ["--peak", workload, side, str(piece or 0)]
    result = subprocess.run(
        [sys.executable, __file__, *arguments],
        capture_output=True, text=True, timeout=timeout, check=False,
    )  # fmt: skip
    if result.returncode:
        say(f"  {workload} {side}: {(result.stderr.strip().splitlines() or ['no word'])[-1]}")
        return None
    return float(result.stdout)


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times, memory and ratios of one workload; of each side its better mode."""
    say(f"{workload}: batch {sides.BATCH}")
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
    """What the benchmark is about, by wall and by processor time.

    A ratio is taken within each turn and its median over the turns given: the load of the machine
    may drift, but hardly within a turn.
    """
    result: dict[str, float] = {}
    own, plain = found[best["cupola"]], found[best["plain"]]
    for kind in ("wall", "cpu"):
        other = {name: found[mode][kind] for name, mode in best.items()}
        mine = other["cupola"]
        opacus = list(map(min, other["opacus hooks"], other["opacus ghost"]))
        result |= {
            f"cupola over plain, {kind}": _ratio(mine, other["plain"]),
            f"cupola over plain in pieces, {kind}": _ratio(mine, other["plain in pieces"]),
            f"better opacus over cupola, {kind}": _ratio(opacus, mine),
        }
    if own["memory_mb"] and plain["memory_mb"]:
        result["cupola over plain, memory"] = own["memory_mb"] / plain["memory_mb"]
    return {key: round(value, 3) for key, value in result.items()}


def _ratio(a: list[float], b: list[float]) -> float:
    return median(x / y for x, y in zip(a, b))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(sides.WORKLOADS), help="a,b,...")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=1.0, help="aimed length of one timing")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a process may take")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    if options.peak:
        workload, side, piece = options.peak
        print(peak(workload, side, int(piece) or None))
        return
    names = options.workloads.split(",")
    if unknown := sorted(set(names) - set(sides.WORKLOADS)):
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(sides.WORKLOADS)}")
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "threads": options.threads,
            "load_before": os.getloadavg()[0],
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "opacus")},
        },
        "settings": {"batch": sides.BATCH, "repeat": options.repeat, "seconds": options.seconds},
        "limits": LIMITS,
        "workloads": {name: measure(name, options) for name in names},
    }
    for name, found in document["workloads"].items():
        say(f"{name}: {json.dumps(found['ratios'])}")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
