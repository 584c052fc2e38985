"""Does a round cost the same in a federation of a thousand and of a million sites?

Sites are made when they are asked; 50 of them take part in a round, whatever the federation's size.
Prints a JSON document; each size runs in a process of its own, so that peak memory is its own.

    python benchmarks/simulation/scale.py [--sites 1000,10000,100000,1000000] [--rounds 100]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from cupola import nn
from cupola.data import synthetic_population
from cupola.engines import InProcess
from cupola.federation import drive
from cupola.training import Evaluation, Local, Participation, Problem, Training, TrainingHost

PER_ROUND = 50


def population(sites: int, rounds: int, **choices: Any) -> tuple[TrainingHost, Training]:
    """A linear model over so many sites of synthetic data, made when they are asked."""
    data = synthetic_population(sites, alpha=0.5, beta=0.5, features=60, max_samples=200)
    problem = Problem(
        lambda: nn.build("linear", data.input_shape, data.classes, 1),
        nn.find_loss("cross_entropy"),
        "classification",
        data.classes,
        data.input_shape,
        "cpu",
    )
    training = Training(
        problem,
        sites,
        rounds,
        local=Local(batch_size=10, lr=0.05),
        evaluation=Evaluation(every=rounds + 1),
        **choices,
    )
    return TrainingHost(problem, data), training


def measure(sites: int, rounds: int) -> dict[str, float]:
    """Set-up time, time per round and peak memory of one federation."""
    torch.set_num_threads(1)
    before = time.perf_counter()
    drawn = Participation(kind="fraction", count=PER_ROUND)
    host, training = population(sites, rounds, participation=drawn)
    with InProcess(host, cache=256) as federation:
        drive(replace(training, rounds=3), federation)
        ready = time.perf_counter()
        drive(training, federation)
        done = time.perf_counter()
    factor = 1 if sys.platform == "darwin" else 1024
    return {
        "sites": sites,
        "setup_seconds": round(ready - before, 3),
        "milliseconds_per_round": round(1000 * (done - ready) / rounds, 3),
        "peak_rss_mb": round(
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * factor / 2**20, 1
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", default="1000,10000,100000,1000000")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(measure(chosen.one, chosen.rounds)))
        return
    rows = []
    for sites in chosen.sites.split(","):
        call = [sys.executable, __file__, "--one", sites, "--rounds", str(chosen.rounds)]
        rows.append(json.loads(subprocess.run(call, check=True, capture_output=True).stdout))
        print(rows[-1], file=sys.stderr)
    print(json.dumps({"sites_per_round": PER_ROUND, "federations": rows}, indent=1))


if __name__ == "__main__":
    main()
