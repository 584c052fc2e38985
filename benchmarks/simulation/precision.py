"""What `precision = "bfloat16"` costs and gives on this machine: workload W2, the EMNIST CNN.

    python benchmarks/simulation/precision.py [--rounds 6] [--turns 3]

Both sides train the same rounds from the same model, in turns. Prints JSON: seconds of processor
time a round (what other programs do on the machine hardly shows), losses after equal rounds, and
the share of the check's examples that both models class alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from dataclasses import replace

# Some virtual machines show AMX and do not allow it; oneDNN believes them and is killed.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import cupola_side
import torch
import workloads

from cupola.engines import InProcess
from cupola.training import TrainingHost

SIDES = ("full", "bfloat16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    models = {}
    for _ in range(chosen.turns):
        for side in SIDES:
            training, engine = cupola_side.federation("w2", "one-by-one")
            problem = replace(training.problem, precision=side)
            training = replace(training, problem=problem)
            engine = InProcess(TrainingHost(problem, engine.host.sites), workers=1)
            with engine:
                state = cupola_side.rounds(training, engine, training.start(), 1)
                start = time.process_time()
                state = cupola_side.rounds(training, engine, state, chosen.rounds - 1)
                seconds[side].append((time.process_time() - start) / (chosen.rounds - 1))
            models[side] = training.model(state)
    x, _ = workloads.check_sample("w2")
    guessed = {side: workloads._forward("w2", models[side], x).argmax(1) for side in SIDES}
    found = {side: statistics.median(times) for side, times in seconds.items()}
    told = {
        "rounds": chosen.rounds,
        "seconds_a_round": found,
        "bfloat16_times_as_fast": found["full"] / found["bfloat16"],
        "losses": {side: workloads.check_loss("w2", models[side]) for side in SIDES},
        "classed_alike": float((guessed["full"] == guessed["bfloat16"]).mean()),
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
