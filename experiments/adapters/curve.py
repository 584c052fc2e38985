"""Accuracy against bytes against epsilon of adapters, as docs/adapters.md prints it.

    CUPOLA_DATA=... python experiments/adapters/curve.py words|images [--private no,yes]

The question: which adapter gives most for its bytes, and does noise change the order? Each row's
rate is the best of a grid a factor two apart, after a third of the rounds, on data that sites hold
out (seed 11; the grid grows while an edge is best); then three seeds, fixed before any was looked
at. A line of JSON per run goes to words.jsonl or images.jsonl; what is there is not run again.
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

Row = dict[str, Any]
NOTHING = "nothing: the base"  # one round at next to no rate
ROWS: dict[str, dict[str, Row]] = {  # what is trained
    "words": {
        NOTHING: {"kind": "bitfit"},
        "everything": {},
        "lora 8": {"kind": "lora", "rank": 8},
        "ffa-lora 8": {"kind": "ffa-lora", "rank": 8},
        "lora-sb 16": {"kind": "lora-sb", "rank": 16},
        "lora-sb 4": {"kind": "lora-sb", "rank": 4},
        "bitfit": {"kind": "bitfit"},
    },
    "images": {
        "the new head alone": {},
        "lora 4": {"kind": "lora", "rank": 4},
        "ffa-lora 4": {"kind": "ffa-lora", "rank": 4},
        "lora-sb 16": {"kind": "lora-sb", "rank": 16},
    },
}
PRIVATE: dict[str, Row] = {
    "words": {"mechanism": "central", "noise_multiplier": 1.0, "quantile": 0.5, "clip": 0.1},
    "images": {"mechanism": "dp-sgd", "epsilon": 8.0, "clip": 1.0, "delta": 1e-4},
}
RATES = {"words": (0.001, 0.002, 0.004, 0.008, 0.016), "images": (0.01, 0.02, 0.04, 0.08, 0.16)}
SEEDS, LOOK = (1, 2, 3), 11


def run_of(plan: str, row: Row, private: bool, rate: float, seed: int, rounds: int) -> Any:
    """The plan, and objects in the place of what it names."""
    made = cupola.load(HERE / f"{plan}.toml").model_dump(mode="json", exclude_unset=True)
    objects = {}
    if row:
        kept = {k: v for k, v in made["trainable"]["adapter"].items() if k in ("base", "targets")}
        made["trainable"] = {"adapter": {**row, **kept}}
    else:
        base = made.pop("trainable")["adapter"].get("base")
        if base:  # the base itself, all of it
            del made["model"]
            objects = {"model": cupola.Run.open(base).model()}
    made["local"]["lr"] = rate
    made |= {"seed": seed, "rounds": rounds}
    made["evaluation"]["every"] = rounds
    if private:
        made["privacy"] = PRIVATE[plan]
    return made, objects


class Runs:
    """Runs by their keys, from a file or made now."""

    def __init__(self, plan: str) -> None:
        self.plan, self.file = plan, HERE / f"{plan}.jsonl"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.held = [json.loads(line) for line in lines]

    def __call__(self, row: str, private: bool, rate: float, seed: int, rounds: int) -> Any:
        key = [row, private, rate, seed, rounds]
        for line in self.held:
            if line["key"] == key:
                return line
        made = run_of(self.plan, ROWS[self.plan][row], private, rate, seed, rounds)
        line = {"key": key, **measured(*made)}
        self.held.append(line)
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, file=sys.stderr, flush=True)
        return line

    def best_rate(self, row: str, private: bool, rounds: int) -> float:
        rates = list(RATES[self.plan])
        while True:
            looked = {rate: self(row, private, rate, LOOK, rounds) for rate in rates}
            losses = {rate: line.get("validation") for rate, line in looked.items()}
            known = {rate: loss for rate, loss in losses.items() if loss is not None}
            best = min(known, key=known.__getitem__, default=rates[0])
            if best == max(rates):
                rates.append(2 * best)
            elif best == min(rates):
                rates.insert(0, best / 2)
            else:
                return best


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


def spread(values: list[float], form: str) -> str:
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", choices=ROWS)
    parser.add_argument("--private", default="no,yes")
    given = parser.parse_args()
    os.chdir(HERE)
    runs, whole = Runs(given.plan), cupola.load(f"{given.plan}.toml")
    base = whole.trainable.adapter.base
    if base and not (Path(base) / "model.safetensors").exists():
        cupola.run(f"{given.plan}-base.toml", base, report=False)
    print("| epsilon | trained | rate | parameters | accuracy, % | loss | MB up |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    for private in (word == "yes" for word in given.private.split(",")):
        for row in ROWS[given.plan]:
            if row == NOTHING and private:
                continue
            if row == NOTHING:
                rate, rounds = 1e-12, 1
            else:
                rate, rounds = runs.best_rate(row, private, whole.rounds // 3), whole.rounds
            each = [runs(row, private, rate, seed, rounds) for seed in SEEDS]
            epsilon = f"{each[0]['epsilon']:.2f}" if private else "none"
            print(
                f"| {epsilon} | {row} | {rate:g} | {each[0]['trained']:,} "
                f"| {spread([100 * e['accuracy'] for e in each], '.2f')} "
                f"| {spread([e['loss'] for e in each], '.3f')} "
                f"| {statistics.mean(e['up'] for e in each) / 1e6:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
