"""Accuracy against bytes of masked FedAvg with compressed updates, MNIST by writer.

    python benchmarks/compression/run.py RESULTS.jsonl    # resumes; then prints the table
    python benchmarks/compression/run.py RESULTS.jsonl --table

Ten sites of about 80 writers each, FedAvg, ten seeds that were fixed beforehand; a row and its
baseline share seed, cut, initial model and batches. Accuracy: on the public test set (unseen
writers), the mean of the last five evaluations, in percent. Difference: to the same seed's plain
float32, with its 95 % interval (paired, Student with nine degrees of freedom). Bytes: of all
messages, those of the compensator included; counted as they are sent, and compared with what
`cupola check` foresaw.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import cupola
from cupola.analysis.plan_file import load
from cupola.data import loading
from cupola.training.forecast import foresee

SEEDS = tuple(range(1, 11))
T975 = 2.262  # Student, nine degrees of freedom
BASE: dict[str, Any] = {
    "name": "compression",
    "rounds": 45,
    "device": "cpu",
    "checkpoint_seconds": 1e6,
    "data": {
        "name": "mnist_by_writer",
        "partition": {"kind": "natural", "merge": 10, "max_samples": 600},
    },
    "model": {"name": "mlp", "hidden": [100]},
    "local": {"lr": 0.3, "batch_size": 32},
    "evaluation": {"every": 3},
    "engine": {"workers": 1},
}
MASKED = ("sum.kind=masked", "sum.bits=32")
SEVEN = "{kind='quantise',bits=7,download=8}"
FOUR = "{kind='sparsify',share=0.85},{kind='quantise',bits=5,download=8}"
FINER = "{kind='sparsify',share=0.6},{kind='quantise',bits=6,download=8}"
ROWS = {
    "plain, float32": (),
    "masked, 7 bits": (*MASKED, f"transforms=[{SEVEN}]"),
    "masked, 4 bits": (*MASKED, f"transforms=[{FOUR}]"),
    "masked, 4 bits, six of ten": (*MASKED, f"transforms=[{FINER}]"),
    "plain, largest 2 %": ("transforms=[{kind='top-k',share=0.02}]",),
    "masked, random tenth": (*MASKED, "transforms=[{kind='sparsify',share=0.1}]"),
    "masked, 32 bits": MASKED,
    "plain, 4 bits": ("transforms=[{kind='quantise',bits=4,download=8}]",),
}


def measure(row: str, seed: int) -> dict[str, Any]:
    plan = load(BASE, [*ROWS[row], f"seed={seed}"])
    told, began = foresee(plan), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        run = cupola.run(plan, Path(folder) / "run", report=False)
        accuracy = [r["test"]["accuracy"] for r in run.history if "test" in r]
        result = run.result
    return {
        "row": row,
        "seed": seed,
        "accuracy": 100 * mean(accuracy[-5:]),
        "site_down": told.per_site_down,
        "site_up": told.per_site_up,
        "down": result["bytes_down"],
        "up": result["bytes_up"],
        "foreseen": (told.down, told.up) == (result["bytes_down"], result["bytes_up"]),
        "exact": not told.bytes_vary,
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def table(found: Sequence[dict[str, Any]]) -> str:
    by = {(f["row"], f["seed"]): f for f in found}
    lines = [
        "| sum, transforms | accuracy | difference (95 %) | site up | of float32 | site down "
        "| of float32 | all up | all down | as foreseen |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    first = next(iter(ROWS))
    plain = by[first, SEEDS[0]]
    for row in ROWS:
        own = [by[row, seed] for seed in SEEDS if (row, seed) in by]
        if not own:
            continue
        gaps = [f["accuracy"] - by[first, f["seed"]]["accuracy"] for f in own]
        if row == first:
            gap = ""
        elif len(gaps) > 2:
            gap = f"{mean(gaps):+.2f} ± {T975 * stdev(gaps) / math.sqrt(len(gaps)):.2f}"
        else:
            gap = f"{mean(gaps):+.2f} ({len(gaps)} seeds)"
        one = own[0]
        cells = [
            row,
            f"{mean(f['accuracy'] for f in own):.2f}",
            gap,
            f"{one['site_up']:,}",
            f"{100 * one['site_up'] / plain['site_up']:.1f} %",
            f"{one['site_down']:,}",
            f"{100 * one['site_down'] / plain['site_down']:.1f} %",
            f"{one['up'] / 1e6:.1f} MB",
            f"{one['down'] / 1e6:.1f} MB",
            "yes" if all(f["foreseen"] and f["exact"] for f in own) else "no",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    results = Path(sys.argv[1])
    lines = results.read_text("utf-8").splitlines() if results.exists() else []
    found = [json.loads(line) for line in lines]
    done = {(f["row"], f["seed"]) for f in found}
    if "--table" not in sys.argv[2:]:
        loading.load = cache(loading.load)  # the data set is read once
        order = [(row, seed) for seed in SEEDS for row in ROWS]
        for row, seed in sorted(order, key=lambda one: list(ROWS).index(one[0]) > 3):
            if (row, seed) not in done:
                found.append(measure(row, seed))
                with results.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(found[-1]) + "\n")
    print(table(found))


if __name__ == "__main__":
    main()
