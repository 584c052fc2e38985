"""Cost of Upcycled-FL: bytes and time of 2M iterations beside FedProx's 2M.

    python benchmarks/upcycled/run.py [--workloads synthetic,writers] [--repeat 5]

Per workload: both whole runs in one process, in turn, from reading the data to judging the model
once, at the coordinator (wall, cpu), and the time of the iterations alone, as the run counts it.
Bytes are those that the run counted. Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import cupola
from cupola.analysis.plan_file import load

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns

EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
ROUNDS = {"synthetic": 400, "writers": 12}
BATCH = 32
FEDPROX = ["recipe=fedprox", "local.proximal=0.1"]
SIDES = {"fedprox": FEDPROX, "upcycled": ["recipe=upcycled-fedprox", *FEDPROX[1:]]}
LIMITS = {"bytes": 0.52, "time": 0.52}


def step(workload: str, side: str, counted: list[tuple[int, float]]) -> Callable[[], None]:
    """One whole run, in a folder of its own; `counted` gets its bytes and its iterations' time."""
    rounds = ROUNDS[workload]
    judged = [f"evaluation.every={rounds}", "evaluation.on=public", "evaluation.train=false"]
    settings = [*SIDES[side], f"rounds={rounds}", *judged, "evaluation.per_site=false"]
    if side == "upcycled":
        settings.append("server.upcycle.damping=0.04")
    plan = load(EXPERIMENTS / f"upcycled-{workload}/plan.toml", settings=settings)

    def run() -> None:
        with TemporaryDirectory() as folder:
            result = cupola.run(plan, Path(folder) / "run", report=False).result
            counted.append((result["bytes_down"] + result["bytes_up"], result["seconds"]))

    return run


def measure(workload: str, repeat: int) -> dict[str, Any]:
    """Times, bytes and their ratios of one workload."""
    counted: dict[str, list[tuple[int, float]]] = defaultdict(list)
    steps = {side: step(workload, side, counted[side]) for side in SIDES}
    found = turns.take_turns(workload, steps, repeat, seconds=0.0)
    for side in SIDES:
        found[side]["bytes"] = counted[side][-1][0]
        found[side]["iterations"] = statistics.median(seconds for _, seconds in counted[side])
    a, b = found["upcycled"], found["fedprox"]
    ratios = {kind: turns.ratio(a[kind], b[kind]) for kind in ("wall", "cpu")}
    ratios |= {kind: a[kind] / b[kind] for kind in ("bytes", "iterations")}
    return {"sides": found, "ratios": {key: round(value, 3) for key, value in ratios.items()}}


def main() -> None:
    parser = turns.parser(__doc__, tuple(ROUNDS), seconds=0.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    turns.report(
        options,
        parser,
        lambda name: measure(name, options.repeat),
        known=tuple(ROUNDS),
        batch=BATCH,
        limits=LIMITS,
    )


if __name__ == "__main__":
    main()
