"""Two checkouts of Cupola side by side: simulation, association studies, start-up.

    python benchmarks/editions/run.py --before CHECKOUT [--pairs 9] [--only w1,help]
                                          [--variants N] [--out FILE]

Every workload runs in a process of its own, in turns: before, after, before again (the A/A pair).
Prints JSON: medians, and the median over turns of after / before and of before / before.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parents[2]
ROUNDS = {"w1": 60, "w2": 3, "w3": 12}
PEOPLE = 5343
TESTS = ("chi-square", "linear", "logistic")


def child(checkout: Path, *command: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    """A command with this checkout's package."""
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "2"}
    line = [sys.executable, *command]
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True)


def simulation(checkout: Path, name: str) -> float:
    """Seconds of a round, by the checkout's own script."""
    script = checkout / "benchmarks" / "simulation" / "cupola_side.py"
    done = child(checkout, str(script), name, "auto", "--rounds", str(ROUNDS[name]))
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])["seconds"] / ROUNDS[name]


def processor(checkout: Path, *command: str, cwd: Path | None = None) -> float:
    """Processor seconds of a command and all it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    child(checkout, *command, cwd=cwd)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def study(checkout: Path, test: str, folder: Path) -> float:
    line = ("-m", "cupola", "gwas", "run", f"{test}.toml", "-o", f"out-{test}-{checkout.name}")
    return processor(checkout, *line, "--overwrite", "--quiet", cwd=folder)


def workloads(folder: Path) -> dict[str, Callable[[Path], float]]:
    """Name -> seconds of one turn in a checkout."""
    found: dict[str, Callable[[Path], float]] = {}
    for name in ROUNDS:
        found[name] = lambda checkout, name=name: simulation(checkout, name)
    for test in TESTS:
        found[test] = lambda checkout, test=test: study(checkout, test, folder)
    found["help"] = lambda checkout: processor(checkout, "-m", "cupola", "--help")
    found["site start"] = lambda checkout: processor(
        checkout, "-m", "cupola", "site", "start", "-f", str(folder / "nowhere")
    )
    return found


def prepare(folder: Path, variants: int) -> None:
    """Cohorts of the studies, and their plans."""
    sys.path[:0] = [str(HERE / "benchmarks" / "gwas"), str(HERE / "src")]
    from run import study as write
    from simulate import simulate

    simulate(folder, PEOPLE, variants)
    for test in TESTS:
        write(folder, test, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", default="")
    parser.add_argument("--variants", type=int, default=120_000)
    parser.add_argument("--out", type=Path)
    chosen = parser.parse_args()
    wanted = [name for name in chosen.only.split(",") if name]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        work = workloads(folder)
        names = wanted or list(work)
        if set(names) & set(TESTS):
            prepare(folder, chosen.variants)
        for name in names:
            turns = []
            for _ in range(chosen.pairs):
                sides = (chosen.before.resolve(), HERE, chosen.before.resolve())
                turns.append([work[name](side) for side in sides])
            first, second, third = zip(*turns)
            found[name] = {
                "before": median(first),
                "after": median(second),
                "after/before": median(b / a for a, b in zip(first, second)),
                "before/before": median(c / a for a, c in zip(first, third)),
            }
            print(time.strftime("%H:%M:%S"), name, found[name], file=sys.stderr, flush=True)
            if chosen.out:
                chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
