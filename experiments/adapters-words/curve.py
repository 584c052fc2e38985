"""Accuracy against bytes against epsilon of adapters, as docs/adapters.md prints it.

    CUPOLA_DATA=... python experiments/adapters-words/curve.py [--noise 0,1] [--out FILE]

The question: which adapter gives most for its bytes, and does noise change the order? Each row's
rate is the best of a grid a factor two apart, after a third of the rounds, on data that roles hold
out (seed 11; the grid grows while an edge is best); then three seeds, fixed before any was looked
at. A line of JSON per run goes to --out; what is there already is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cupola  # noqa: E402
from cupola.errors import CupolaError  # noqa: E402

ROWS: dict[str, dict[str, Any]] = {  # what is trained
    "everything": {},
    "lora 8": {"kind": "lora", "rank": 8},
    "ffa-lora 8": {"kind": "ffa-lora", "rank": 8},
    "lora-sb 16": {"kind": "lora-sb", "rank": 16},
    "lora-sb 4": {"kind": "lora-sb", "rank": 4},
    "bitfit": {"kind": "bitfit"},
}
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
SEEDS, LOOK = (1, 2, 3), 11


def run_of(row: dict[str, Any], noise: float, rate: float, seed: int, rounds: int) -> Any:
    """The plan, and objects in the place of what it names."""
    made = cupola.load(HERE / "plan.toml").model_dump(mode="json", exclude_unset=True)
    base, objects = made["trainable"]["adapter"]["base"], {}
    if row:
        made["trainable"] = {"adapter": {**row, "base": base}}
    else:  # the base itself, all of it
        del made["trainable"], made["model"]
        objects = {"model": cupola.Run.open(base).model()}
    made["local"]["lr"] = rate
    made |= {"seed": seed, "rounds": rounds}
    made["evaluation"]["every"] = rounds
    if noise:
        made["privacy"] = {"mechanism": "central", "noise_multiplier": noise, "quantile": 0.5,
                           "clip": 0.1}  # fmt: skip
    return made, objects


class Runs:
    """Runs by their keys, from a file or made now."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text().splitlines() if file.exists() else []
        self.held = [json.loads(line) for line in lines]

    def __call__(self, row: str, noise: float, rate: float, seed: int, rounds: int) -> Any:
        key = [row, noise, rate, seed, rounds]
        for line in self.held:
            if line["key"] == key:
                return line
        line = {"key": key, **measured(*run_of(ROWS[row], noise, rate, seed, rounds))}
        self.held.append(line)
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, file=sys.stderr, flush=True)
        return line


def measured(made: Any, objects: Any) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = cupola.run(made, f"{folder}/run", report=False, **objects).result
        except CupolaError as error:
            return {"failed": str(error)[:200]}
    return {
        "trained": result.trainable,
        "up": result.bytes_up,
        "down": result.bytes_down,
        "epsilon": None if result.privacy is None else result.privacy.epsilon,
        "validation": result.final.sites_validation.loss,
        "loss": result.final.sites_test.loss,
        "accuracy": result.final.sites_test.accuracy,
    }


def best_rate(runs: Runs, row: str, noise: float, rounds: int) -> float:
    rates = list(RATES)
    while True:
        looked = {rate: runs(row, noise, rate, LOOK, rounds).get("validation") for rate in rates}
        known = {rate: loss for rate, loss in looked.items() if loss is not None and loss == loss}
        best = min(known, key=known.__getitem__)
        if best == max(rates):
            rates.append(2 * best)
        elif best == min(rates):
            rates.insert(0, best / 2)
        else:
            return best


def spread(values: list[float], form: str) -> str:
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--noise", default="0,1")
    parser.add_argument("--out", type=Path, default=HERE / "results.jsonl")
    given = parser.parse_args()
    runs = Runs(given.out.resolve())
    os.chdir(HERE)
    whole = cupola.load("plan.toml")
    base = Path(whole.trainable.adapter.base)
    if not (base / "model.safetensors").exists():
        cupola.run("base.toml", base, report=False)
    print("| noise | epsilon | trained | rate | parameters | accuracy, % | loss | MB up |")
    print("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for noise in map(float, given.noise.split(",")):
        for row in ROWS:
            rate = best_rate(runs, row, noise, whole.rounds // 3)
            each = [runs(row, noise, rate, seed, whole.rounds) for seed in SEEDS]
            epsilon = f"{each[0]['epsilon']:.2f}" if noise else "none"
            print(
                f"| {noise:g} | {epsilon} | {row} | {rate:g} | {each[0]['trained']:,} "
                f"| {spread([100 * e['accuracy'] for e in each], '.2f')} "
                f"| {spread([e['loss'] for e in each], '.3f')} "
                f"| {statistics.mean(e['up'] for e in each) / 1e6:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
