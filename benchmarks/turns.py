"""What benchmarks of single steps share: sides timed in turn, peak memory, facts, options."""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

THREADS = 2
Measured = dict[str, Any]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def take_turns(
    workload: str, steps: Mapping[str, Callable[[], Any]], repeat: int, seconds: float
) -> dict[str, Measured]:
    """Seconds of one step of every side, A B C A B C ..., and their medians."""
    found: dict[str, Measured] = {side: {"wall": [], "cpu": []} for side in steps}
    counts = {}
    for side, step in steps.items():  # warm up, and find how many steps fill the time
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


def ratio(a: Sequence[float], b: Sequence[float]) -> float:
    """Median over turns of the ratio within a turn: the load of a machine hardly drifts there."""
    return median(x / y for x, y in zip(a, b))


def peak_resident(step: Callable[[], Any]) -> float:
    """MiB that two steps take above what the process held before them."""
    before = resident(reset=True)
    for _ in range(2):
        step()
    return resident() - before


def peak_tensors(step: Callable[[], Any]) -> float:
    """MiB of tensors that a step takes at most, above those that were there before."""
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        step()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = most = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20


def resident(*, reset: bool = False) -> float:
    """Peak resident size, MiB; the present one where the peak can be reset."""
    status = Path("/proc/self/status")
    if not status.exists():
        factor = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor / 2**20
    if reset:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
    return int(lines["VmHWM"].split()[0]) / 1024


def parser(doc: str, workloads: Sequence[str], seconds: float) -> argparse.ArgumentParser:
    """Options of all such benchmarks."""
    made = argparse.ArgumentParser(description=doc.splitlines()[0])
    made.add_argument("--workloads", default=",".join(workloads), help="a,b,...")
    made.add_argument("--repeat", type=int, default=7)
    made.add_argument("--seconds", type=float, default=seconds, help="aimed length of one timing")
    made.add_argument("--threads", type=int, default=THREADS)
    return made


def report(
    options: argparse.Namespace,
    parser: argparse.ArgumentParser,
    measure: Callable[[str], Measured],
    *,
    known: Sequence[str],
    batch: int,
    limits: Mapping[str, float],
    packages: Sequence[str] = ("torch",),
) -> None:
    """Measure every workload that was asked for; one JSON document on stdout."""
    names = options.workloads.split(",")
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no workload {', '.join(unknown)}; there are {', '.join(known)}")
    document = {
        "machine": {
            "cores": os.cpu_count(),
            "threads": options.threads,
            "load_before": os.getloadavg()[0],
            "python": platform.python_version(),
            **{package: version(package) for package in packages},
        },
        "settings": {"batch": batch, "repeat": options.repeat, "seconds": options.seconds},
        "limits": limits,
        "workloads": {},
    }
    for name in names:
        say(f"{name}: batch {batch}")
        document["workloads"][name] = measure(name)
    for name, found in document["workloads"].items():
        say(f"{name}: {json.dumps(found['ratios'])}")
    print(json.dumps(document, indent=1))
