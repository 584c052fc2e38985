"""Accuracy against bytes against epsilon of adapters, as docs/adapters.md prints it.

Each row's rate is the best of a grid on validation data that roles hold out (seed 1); then three
seeds, fixed before any was looked at. A line of JSON per run goes to --out; what is there already
is not run again.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import cupola
from cupola.analysis.plan_file import load
from cupola.errors import CupolaError

HERE = Path(__file__).parent
ROWS = [("lora", 8), ("ffa-lora", 8), ("lora-sb", 16), ("lora-sb", 4)]
NOISE = [0.0, 0.7]
RATES = [0.1, 0.3, 1.0]
SEEDS = [1, 2, 3]


def settings(kind: str, rank: int, noise: float, rate: float, base: Path) -> list[str]:
    made = [f"trainable.adapter={{kind='{kind}',rank={rank},base='{base}'}}", f"local.lr={rate}"]
    if noise:
        made += ["privacy.mechanism=central", f"privacy.noise_multiplier={noise}",
                 "privacy.quantile=0.5", "privacy.clip=0.1"]  # fmt: skip
    return made


def measured(out: Path, key: list[Any], given: list[str], seed: int) -> dict[str, Any]:
    """The run of this key, from the file or now."""
    done = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    for line in done:
        if line["key"] == key:
            return line
    folder = Path(tempfile.mkdtemp())
    try:
        plan = load(HERE / "plan.toml", [*given, f"seed={seed}"])
        result = cupola.run(plan, folder / "run", report=False).result
    except CupolaError as error:
        line = {"key": key, "failed": str(error)}
    else:
        last = result.final
        line = {
            "key": key,
            "trainable": result.trainable,
            "up": result["bytes_up"],
            "down": result["bytes_down"],
            "epsilon": None if result.privacy is None else result.privacy.epsilon,
            "validation": last.sites_validation.loss,
            "loss": last.sites_test.loss,
            "accuracy": last.sites_test.accuracy,
        }
    shutil.rmtree(folder)
    with out.open("a") as file:
        file.write(json.dumps(line) + "\n")
    return line


def best_rate(out: Path, kind: str, rank: int, noise: float, base: Path) -> float:
    """By validation loss; the grid grows while its edge is best."""
    rates = list(RATES)
    while True:
        tried = {
            rate: measured(out, [kind, rank, noise, rate, 1],
                           settings(kind, rank, noise, rate, base), 1).get("validation")
            for rate in rates
        }  # fmt: skip
        known = {rate: loss for rate, loss in tried.items() if loss is not None}
        best = min(known, key=known.__getitem__)
        if best == max(known) and max(known) == max(rates) and best < 1e4:
            rates.append(best * 3)
        elif best == min(rates) and best > 1e-4:
            rates.insert(0, best / 3)
        else:
            return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, default=Path("runs/adapters-base"))
    parser.add_argument("--out", type=Path, default=Path("runs/adapters-words.jsonl"))
    given = parser.parse_args()
    if not (given.base / "model.safetensors").exists():
        cupola.run(load(HERE / "base.toml"), given.base, report=False)
    for noise in NOISE:
        for kind, rank in ROWS:
            rate = best_rate(given.out, kind, rank, noise, given.base)
            each = [
                measured(given.out, [kind, rank, noise, rate, seed],
                         settings(kind, rank, noise, rate, given.base), seed)
                for seed in SEEDS
            ]  # fmt: skip
            parts = [f"{kind} {rank}", f"noise {noise}", f"rate {rate:g}"]
            for name in ("accuracy", "loss", "up", "down", "epsilon", "trainable"):
                values = [line[name] for line in each if line.get(name) is not None]
                spread = statistics.stdev(values) if len(values) > 1 else 0.0
                if values:
                    parts.append(f"{name} {statistics.mean(values):.6g} ± {spread:.2g}")
            print(" | ".join(parts), flush=True)


if __name__ == "__main__":
    main()
