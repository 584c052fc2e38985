"""The Ray engine: how much two workers gain over one, and what 100,000 sites take.

    python benchmarks/ray/run.py                  # needs a quiet machine with two cores
    python benchmarks/ray/run.py --rounds 1 --repeat 1 --sites 2000        # does it work at all

speed: rounds of workload w2 of benchmarks/simulation (20 sites, CNN of 1.7 M parameters), one
worker and two in turns, after a round of warm-up; the median of the repeats counts. in-process, on
two threads, is measured beside it. Starting workers is not timed.
memory: rounds in which *all* of so many sites take part, linear model, data made when a site is
asked; in a process of its own. Peak resident sizes of the coordinator and of its workers, for a
tenth of the sites and for all of them. Prints a JSON document; progress goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "simulation"))

import cupola_side
import scale

from cupola.engines import RayCluster
from cupola.engines.ray_connection import connect, library
from cupola.federation import Contribution, Federation, Question, Spec, task


@task("benchmark memory")
def memory(site: Any, question: Question) -> Contribution:  # noqa: ARG001
    """The process that answers for this site, and its peak resident size in kB."""
    return Contribution({"process": torch.tensor([float(os.getpid()), _peak()]).double().numpy()})


def _peak() -> float:
    status = Path("/proc/self/status").read_text()
    return float(status.split("VmHWM:")[1].split()[0])


def speed(rounds: int, repeat: int) -> dict[str, Any]:
    """Rounds per second of every side; sides in turns, so that all meet the same machine."""
    torch.set_num_threads(2)
    training, here = cupola_side.federation("w2", "auto")
    sides: dict[str, Federation] = {"in-process, 2 threads": here}
    found: dict[str, list[float]] = {}
    disconnect = connect(library(), None, 3)  # all workers at once; those not asked wait
    try:
        sides["1 worker"] = RayCluster(here.host, workers=1)
        sides["2 workers"] = RayCluster(here.host, workers=2)
        states = {
            name: cupola_side.rounds(training, side, training.start(), 1)
            for name, side in sides.items()
        }
        for _ in range(repeat):
            for name, side in sides.items():
                start = time.perf_counter()
                states[name] = cupola_side.rounds(training, side, states[name], rounds)
                found.setdefault(name, []).append(rounds / (time.perf_counter() - start))
                print(f"{name}: {found[name][-1]:.3f} rounds/s", file=sys.stderr)
    finally:
        for side in sides.values():
            side.close()
        disconnect()
    models = {name: training.model(state) for name, state in states.items()}
    apart = max(
        float(abs(models["1 worker"][n] - models["2 workers"][n]).max()) for n in models["1 worker"]
    )
    median = {name: statistics.median(values) for name, values in found.items()}
    return {
        "rounds_per_second": {k: [round(v, 4) for v in values] for k, values in found.items()},
        "two_workers_to_one": round(median["2 workers"] / median["1 worker"], 3),
        "two_workers_to_in_process": round(
            median["2 workers"] / median["in-process, 2 threads"], 3
        ),
        "largest_difference_of_models": apart,
    }


def population(sites: int, rounds: int, workers: int) -> dict[str, Any]:
    """Peak memory of rounds in which all sites take part."""
    host, training = scale.population(sites, rounds)
    with RayCluster(host, workers=workers) as federation:
        start = time.perf_counter()
        cupola_side.rounds(training, federation, training.start(), rounds)
        seconds = time.perf_counter() - start
        asked = Question("benchmark memory", expects={"process": Spec((2,))}, step=rounds + 1)
        told = federation.gather(asked, range(4 * workers)).values()
    peaks = {int(a.arrays["process"][0]): a.arrays["process"][1] for a in told}
    return {
        "sites": sites,
        "seconds_a_round": round(seconds / rounds, 2),
        "coordinator_mb": round(_peak() / 1024, 1),
        "workers_mb": [round(kb / 1024, 1) for kb in peaks.values()],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="timed at once")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sites", type=int, default=100_000)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(population(chosen.one, 2, 2)))
        return
    grown = []
    for sites in (chosen.sites // 10, chosen.sites):
        call = [sys.executable, __file__, "--one", str(sites)]
        done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True)
        grown.append(json.loads(done.stdout.splitlines()[-1]))
        print(grown[-1], file=sys.stderr)
    machine = {"cores": os.cpu_count(), "python": platform.python_version()}
    found = {"speed": speed(chosen.rounds, chosen.repeat), "memory": grown, "machine": machine}
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
