"""Cost of kernel normalisation: time and memory of forward and backward, batch 32.

    python benchmarks/kernelnorm/run.py [--workloads layer,resnet8] [--repeat 7] [--threads 2]

Per workload: all sides in one process, in turn, A B C A B C ...; then each side's peak memory, in a
process of its own: of tensors (exact), and of the process (which scatters with what the allocator
keeps). Prints one JSON document on stdout, progress on stderr.
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
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import sides
import torch

THREADS = 2
LIMITS = {"time over group": 1.35, "memory over group": 1.25, "unfold over kernel": 4.0}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def times(workload: str, repeat: int, seconds: float) -> dict[str, dict[str, Any]]:
    """Seconds of one pass of every side, taken in turn."""
    steps = {side: sides.step(workload, side) for side in sides.SIDES}
    found: dict[str, dict[str, Any]] = {side: {"wall": [], "cpu": []} for side in steps}
    counts = {}
    for side, step in steps.items():  # warm up, and find how many passes fill the time
        step()
        start = time.perf_counter()
        step()
        counts[side] = max(1, min(1000, int(seconds / (time.perf_counter() - start))))
    for _ in range(repeat):
        for side, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(counts[side]):
                step()
            found[side]["wall"].append((time.perf_counter() - wall) / counts[side])
            found[side]["cpu"].append((time.process_time() - cpu) / counts[side])
    for side, each in found.items():
        each |= {"seconds": median(each["wall"]), "cpu_seconds": median(each["cpu"])}
        say(
            f"  {workload} {side}: {1e3 * each['seconds']:.3g} ms ({1e3 * each['cpu_seconds']:.3g})"
        )
    return found


def peak(workload: str, side: str) -> tuple[float, float]:
    """MiB above what was held before: of tensors in a pass, and of the process in two passes."""
    step = sides.step(workload, side)
    before = _resident(reset=True)
    for _ in range(2):
        step()
    resident = _resident() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20, resident


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


def memory(workload: str, side: str, threads: int) -> dict[str, float]:
    """`peak` in a process of its own."""
    result = subprocess.run(
        [sys.executable, __file__, "--threads", str(threads), "--peak", workload, side],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    tensors, resident = map(float, result.stdout.split())
    return {"memory_mb": tensors, "resident_mb": resident}


def measure(workload: str, options: argparse.Namespace) -> dict[str, Any]:
    """Times, memory and ratios of one workload."""
    say(f"{workload}: batch {sides.BATCH}")
    found = times(workload, options.repeat, options.seconds)
    for side in sides.SIDES:
        found[side] |= memory(workload, side, options.threads)
    return {"sides": found, "ratios": ratios(found)}


def ratios(found: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What the benchmark is about: medians over turns of ratios within a turn, and of memory."""
    result = {}
    pairs = [
        (a, b) for b in ("group", "batch") for a in ("kernel", "kernel, no dropout", "unfold")
    ] + [("unfold", "kernel")]
    for a, b in pairs:
        for kind in ("wall", "cpu"):
            turns = zip(found[a][kind], found[b][kind])
            result[f"{a} over {b}, {kind}"] = median(x / y for x, y in turns)
        for kind, key in (("memory", "memory_mb"), ("resident", "resident_mb")):
            result[f"{a} over {b}, {kind}"] = found[a][key] / found[b][key]
    return {key: round(value, 3) for key, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(sides.WORKLOADS), help="a,b,...")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="aimed length of one timing")
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print(*peak(*options.peak))
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
            "torch": version("torch"),
        },
        "settings": {
            "batch": sides.BATCH, "repeat": options.repeat, "seconds": options.seconds,
        },
        "limits": LIMITS,
        "workloads": {name: measure(name, options) for name in names},
    }  # fmt: skip
    for name, found in document["workloads"].items():
        say(f"{name}: {json.dumps(found['ratios'])}")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
