"""What `cupola audit` finds at its defaults: six faults in every mechanism, and twenty sound runs.

    python benchmarks/audit/power.py --out benchmarks/audit/power.json [--only sound]

A run is made and audited while the fault is in the code; one process, one core. FILE is written
after every run, and what it holds is not done again. Prints the tables of docs/audit.md and fails
if a fault is missed, takes three minutes or more, or a sound run is refuted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "audit"))
from audit_data import BASE, PLANS, SAMPLED, UNIFORM
from faults import FAULTS, PAIRS
from turns import say

import cupola
from cupola.cli import app

LIMIT = 180.0  # seconds
STEP = {"work": "batches", "batches": 1, "batch_size": 16, "lr": 0.1}
TEXTS = {"name": "audit_data:texts", "partition": {"kind": "iid", "sites": 4}}
TEN = {"name": "digits", "partition": {"kind": "iid", "sites": 10}}
TRANSFORMER = {"name": "transformer", "width": 8, "heads": 2, "hidden": 16, "layers": 1,
               "dropout": 0.0}  # fmt: skip
SGD = {"local": STEP, "privacy": {"mechanism": "dp-sgd", "epsilon": 3.0}}
GROUP = {"norm": "group", "group_size": 8}
#: Other models under the same mechanisms.
MODELS: dict[str, dict[str, Any]] = {
    "dp-sgd, cnn": {"model": {"name": "cnn", **GROUP}, "data": TEN, **SGD},
    "dp-sgd, resnet8": {"model": {"name": "resnet8", **GROUP}, "data": TEN, **SGD},
    "dp-sgd, transformer": {"model": TRANSFORMER, "data": TEXTS, **SGD},
    "dp-sgd, lstm": {"model": "audit_models:lstm", "data": TEN, **SGD},
    "central, cnn": {**PLANS["central"], "model": {"name": "cnn", **GROUP}, "data": TEN},
    "central, transformer": {
        "model": TRANSFORMER,
        "data": TEXTS,
        "local": {**UNIFORM, "batch_size": 8},
        "privacy": {"mechanism": "central", "epsilon": 2.0},
    },
    "dp-ftrl, mlp": {**PLANS["dp-ftrl"], "model": {"name": "mlp", "hidden": [16]}},
    "distributed, mlp": {**PLANS["distributed"], "model": {"name": "mlp", "hidden": [16]}},
}
ALL = PLANS | SAMPLED | MODELS
SOUND = "sound"
Cell = tuple[str, str]  # plan, fault or SOUND


def cells() -> list[Cell]:
    """The faults of every mechanism, and a sound run of every plan."""
    return [*PAIRS, *((kind, SOUND) for kind in ALL)]


def measured(kind: str, fault: str, seed: int) -> dict[str, Any]:
    """One run and its audit; seconds are the audit's."""
    with tempfile.TemporaryDirectory() as place, pytest.MonkeyPatch.context() as patch:
        folder = Path(place) / "run"
        if fault != SOUND:
            FAULTS[fault](kind, patch)
        cupola.run({**BASE, "name": kind, **ALL[kind], "seed": seed}, folder, report=False)
        wall, cpu = time.perf_counter(), time.process_time()
        options = ["--json", "--workers", "1", "--seed", str(seed)]
        result = CliRunner().invoke(app, ["audit", str(folder), *options])
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        if result.exit_code not in (0, 1):
            raise RuntimeError(result.output) from result.exception
    found = json.loads(result.stdout)
    parts, canaries, members = found["parts"], found["epsilon"], found["membership"] or {}
    ratio = members.get("likelihood_ratio") or {}
    return {
        "verdict": found["verdict"],
        "said": parts["said"][:3],
        "least_power": parts["least_power"],
        "canaries": canaries["verdict"],
        "trials": canaries["trials"],
        "shadows": ratio.get("shadows", 0),
        "false_alarm": found["false_alarm"],
        "seconds": round(wall, 1),
        "cpu_seconds": round(cpu, 1),
        "parts_seconds": round(parts["seconds"], 1),
        "load": round(os.getloadavg()[0], 1),
    }


def tables(found: dict[str, Any]) -> str:
    """What docs/audit.md prints."""
    lines = [_row("run", *FAULTS), _row(*["---"] * (1 + len(FAULTS)))]
    for kind in dict.fromkeys(kind for kind, _ in PAIRS):
        each = [found.get(_name(kind, fault)) for fault in FAULTS]
        if any(each):
            lines.append(_row(kind, *map(_said, each)))
    lines += ["", _row("sound run", "verdict", "trials", "shadow runs", "seconds")]
    lines.append(_row(*["---"] * 5))
    sound = {kind: found[_name(kind, SOUND)] for kind in ALL if _name(kind, SOUND) in found}
    for kind, cell in sound.items():
        lines.append(
            _row(kind, *(cell[part] for part in ("verdict", "trials", "shadows", "seconds")))
        )
    refuted = sum(cell["verdict"] == "refuted" for cell in sound.values())
    seconds = [cell["seconds"] for cell in found.values()]
    lines += ["", f"{refuted} of {len(sound)} sound runs refuted; at most {max(seconds)} s"]
    return "\n".join(lines)


def _row(*values: Any) -> str:
    return f"| {' | '.join(map(str, values))} |"


def _said(cell: dict[str, Any] | None) -> str:
    """Seconds until it was refuted."""
    if cell is None:
        return ""
    return f"{cell['seconds']:.0f}" if cell["verdict"] == "refuted" else "missed"


def _name(kind: str, fault: str) -> str:
    return f"{kind}: {fault}"


def good(found: dict[str, Any]) -> bool:
    """Whether all that was measured is as it must be."""
    return all(
        cell["verdict"] == "consistent"
        if name.endswith(SOUND)
        else cell["verdict"] == "refuted" and cell["seconds"] < LIMIT
        for name, cell in found.items()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    for number, (kind, fault) in enumerate(cells()):
        name = _name(kind, fault)
        if name in found or options.only not in name:
            continue
        found[name] = measured(kind, fault, seed=number)
        say(f"{name}: {found[name]['verdict']} in {found[name]['seconds']} s")
        written = options.out.with_suffix(".new")
        written.write_text(json.dumps(found, indent=1) + "\n")
        written.replace(options.out)
    print(tables(found))
    sys.exit(not good(found))


if __name__ == "__main__":
    main()
