"""What all sides of the benchmark have in common: their command line and their one line of JSON.

    python SIDE.py WORKLOAD MODE --rounds N     # trains warm-up + N rounds, times the last N
    python SIDE.py WORKLOAD list                # prints the side's modes as a JSON list

Standard library only, apart from `workloads` (numpy).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import workloads

THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def set_threads(threads: int) -> None:
    """Limit every numerical library to so many threads; call before importing it."""
    for variable in THREAD_VARIABLES:
        os.environ[variable] = str(threads)


def arguments(about: str, modes: Sequence[str]) -> argparse.ArgumentParser:
    """Parser of a side's command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("workload", choices=list(workloads.WORKLOADS))
    parser.add_argument("mode", choices=[*modes, "list"])
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, after the warm-up")
    return parser


def print_modes(modes: Sequence[str]) -> None:
    """Answer to `WORKLOAD list`."""
    print(json.dumps(list(modes)), flush=True)


def report(
    side: str,
    workload: str,
    mode: str,
    rounds: int,
    seconds: float,
    parameters: Mapping[str, np.ndarray],
    packages: Sequence[str],
    peak_rss_mb: float | None = None,
    **more: object,
) -> None:
    """Print the one line of JSON.

    parameters: the global model after warm-up + rounds; its loss is taken here, off the clock.
    """
    print(
        json.dumps(
            {
                "side": side,
                "workload": workload,
                "mode": mode,
                "warmup": workloads.WORKLOADS[workload].warmup,
                "rounds": rounds,
                "seconds": seconds,
                "rounds_per_second": rounds / seconds,
                # before the check, which has a working memory of its own
                "peak_rss_mb": round(peak_rss_mb or tree_peak_rss_mb(), 1),
                "final_loss": workloads.check_loss(workload, parameters),
                "versions": versions(packages),
                **more,
            }
        ),
        flush=True,
    )


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Installed versions, Python included."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def tree_peak_rss_mb(process: int | None = None) -> float:
    """Sum of the peak resident sizes of a process and its living descendants, MiB.

    Pages that processes share are counted in each of them.
    """
    proc = Path("/proc")
    if not (proc / "self" / "status").exists():
        factor = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor / 2**20
    parents: dict[int, int] = {}
    peaks: dict[int, int] = {}
    for status in proc.glob("[0-9]*/status"):
        try:
            lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        except OSError:
            continue  # ended meanwhile
        number = int(status.parent.name)
        parents[number] = int(lines["PPid"])
        peaks[number] = int(lines.get("VmHWM", "0 kB").split()[0])
    wanted = {process or os.getpid()}
    while grown := {p for p, parent in parents.items() if parent in wanted} - wanted:
        wanted |= grown
    return sum(peaks.get(p, 0) for p in wanted) / 1024
