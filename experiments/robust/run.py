"""Robust rules against liars: rates by validation data, then three seeds; resumable.

    CUPOLA_DATA=... python experiments/robust/run.py [FILE]    # lines of JSON; prints the table

Each row's rate is the best of five, a factor two apart, after 20 rounds with another seed, by
public validation data. Group sums are masked in final runs, plain (the same to rounding) before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

HERE = Path(__file__).resolve().parent
FILE = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "results.jsonl").resolve()
sys.path.insert(0, str(HERE))
os.chdir(HERE)

import cupola  # noqa: E402
from cupola.errors import CupolaError  # noqa: E402

PAIRS = ["method.name=bad_sites:Geometric", "method.group=2"]
ROWS: dict[str, tuple[int, list[str], list[str]]] = {  # liars, settings, those of final runs
    "mean, nobody lies": (0, [], []),
    "mean": (12, [], []),
    "geometric median of masked pairs": (12, PAIRS, ["sum.kind=masked", "sum.minimum=2"]),
    "the same, nobody lies": (0, PAIRS, ["sum.kind=masked", "sum.minimum=2"]),
    "trimmed mean": (12, ["method.name=bad_sites:Trimmed", "method.trim=0.25"], []),
}
RATES, SEEDS, LOOK = (0.1, 0.2, 0.4, 0.8, 1.6), (1, 2, 3), 11


def run(settings: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = cupola.run("plan.toml", f"{folder}/run", settings=settings, report=False)
        except CupolaError as error:
            return {"validation": None, "said": str(error)[:100]}
        test = {r["round"]: r["test"]["accuracy"] for r in found.history if r.get("test")}
        final = found.result.final.validation.accuracy
        return {"validation": final, "test": test, "up": found.result.bytes_up}


def main() -> None:
    held = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.exists() else []
    for row, (bad, own, final) in ROWS.items():
        for seed, rate in [(LOOK, rate) for rate in RATES] + [(seed, None) for seed in SEEDS]:
            if rate is None:
                looked = [h for h in held if h["row"] == row and h["seed"] == LOOK]
                rate = max(looked, key=lambda h: h["validation"] or 0.0)["lr"]
            if any((h["row"], h["seed"], h["lr"]) == (row, seed, rate) for h in held):
                continue
            more = ["rounds=20"] if seed == LOOK else final
            settings = [*own, *more, f"method.bad={bad}", f"local.lr={rate}", f"seed={seed}"]
            held.append({"row": row, "bad": bad, "seed": seed, "lr": rate, **run(settings)})
            with FILE.open("a") as file:
                file.write(json.dumps(held[-1]) + "\n")
    print("| rule | liars | rate | accuracy, % | deviation |\n| --- | --- | --- | --- | --- |")
    for row, (bad, *_) in ROWS.items():
        runs = [h for h in held if h["row"] == row and h["seed"] != LOOK]
        last = [100 * list(h["test"].values())[-1] for h in runs if h.get("test")]
        rate = runs[0]["lr"] if runs else ""
        print(f"| {row} | {bad} | {rate} | {mean(last):.1f} | {stdev(last):.1f} |")


if __name__ == "__main__":
    main()
