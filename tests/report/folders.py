"""Run folders made by hand, as a run would fill them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import tomli_w


def records(
    rounds: int, top: float, size: int, sites: int, seed: int = 1, **extra: Any
) -> list[dict]:
    """A history that rises to about `top`."""
    found = []
    for r in range(1, rounds + 1):
        wobble = 0.012 * math.sin(1.7 * r + seed)
        accuracy = min(top * (1 - math.exp(-r / (rounds / 5))) + wobble, 1.0)
        judged = {
            "loss": 2.2 * math.exp(-r / (rounds / 4)) + 0.2,
            "accuracy": accuracy,
            "samples": 360,
        }
        record = {
            "round": r,
            "sites": sites,
            "failed": {"timeout": 1, "not finite": 2} if r % 7 == 0 else {},
            "samples": 1437.0,
            "test": judged,
            "validation": {**judged, "accuracy": max(accuracy - 0.02, 0)},
            "bytes_down": r * sites * size,
            "bytes_up": r * sites * (size + 40),
            "seconds": 0.05 * r,
        }
        found.append(record | {k: v for k, v in extra.items() if r == rounds or k != "per_site"})
    return found


def make_run(
    folder: Path,
    *,
    rounds: int = 40,
    recipe: str = "fedavg",
    seed: int = 1,
    top: float = 0.95,
    size: int = 2600,
    sites: int = 10,
    name: str = "digits",
    status: str | None = "finished",
    reason: str | None = None,
    per_site: bool = False,
    confusion: bool = False,
    twin: bool = False,
    plan: dict[str, Any] | None = None,
) -> Path:
    """A run folder as in the contract; status None leaves it unfinished."""
    folder.mkdir(parents=True, exist_ok=True)
    whole = {
        "name": name,
        "seed": seed,
        "rounds": rounds,
        "recipe": recipe,
        "data": {
            "name": "digits",
            "partition": {"kind": "dirichlet", "alpha": 0.3, "sites": sites},
        },
        "model": {"name": "logistic"},
        "local": {"lr": 0.1, "batch_size": 16},
        "evaluation": {"metric": "accuracy"},
        **(plan or {}),
    }
    (folder / "plan.toml").write_text(tomli_w.dumps(whole))
    history = records(rounds, top, size, sites, seed)
    if per_site:
        own = {
            str(s): {"accuracy": 0.75 + 0.02 * ((s * 7) % sites), "loss": 0.3} for s in range(sites)
        }
        history[-1]["per_site"] = own
    if confusion:
        table = [[34 if i == j else (i * j) % 3 for j in range(10)] for i in range(10)]
        history[-1]["test"]["confusion"] = table
    lines(folder / "history.jsonl", history)
    lines(folder / "ledger.jsonl", ledger(rounds, size, sites, per_site))
    counts = [
        [(7 * s * (c + 1)) % 23 * ((s + c) % 3 == 0) for c in range(10)] for s in range(sites)
    ]
    held = {"sites": sites, "classes": [str(c) for c in range(10)], "counts": counts}
    held["sizes"] = [sum(row) for row in counts]
    (folder / "partition.json").write_text(json.dumps(held))
    if twin:
        make_run(folder / "twin", rounds=rounds, top=top + 0.01, size=0, sites=1, name=name)
    if status:
        last = history[-1]
        result = {
            "status": status, "reason": reason, "name": name, "recipe": recipe, "seed": seed,
            "rounds": rounds, "final": last, "best": None, "bytes_down": last["bytes_down"],
            "bytes_up": last["bytes_up"], "seconds": last["seconds"], "parameters": 650,
            "model": "logistic", "data": "digits", "sites": sites,
            "versions": {"cupola": "0.1.0", "torch": "2.8", "python": "3.11"},
            "simulated": True, "twin": {"difference": 1e-9} if twin else None,
        }  # fmt: skip
        (folder / "result.json").write_text(json.dumps(result))
    return folder


def ledger(rounds: int, size: int, sites: int, per_site: bool) -> list[dict[str, Any]]:
    entries = []
    for r in range(1, rounds + 1):
        entries.append(
            {
                "step": r,
                "round": r,
                "task": "train",
                "kind": "sum",
                "sites": list(range(sites - 1)),
                "failed": {str(sites - 1): "timeout"} if sites > 1 else {},
                "bytes_down": size,
                "bytes_up": size + 40,
                "reveals": "model change after local training, summed over sites; samples used",
                "protection": "none",
            }
        )
    if per_site:
        entries.append(
            {
                "step": rounds,
                "round": rounds,
                "task": "evaluate",
                "kind": "gather",
                "sites": list(range(sites)),
                "failed": {},
                "bytes_down": size,
                "bytes_up": [900 + s for s in range(sites)],
                "reveals": "counts of the model on test data, each site's own",
                "protection": "none",
            }
        )
    return entries


def make_runs(folder: Path) -> Path:
    """A folder of runs: four recipes, three seeds."""
    listed = []
    shapes = {
        "fedavg": (0.93, 2600),
        "scaffold": (0.95, 5200),
        "fedadam": (0.9, 2600),
        "fedfgd": (0.7, 900),
    }
    for recipe, (top, size) in shapes.items():
        for seed in (1, 2, 3):
            label = f"recipe={recipe},seed={seed}"
            make_run(folder / label, recipe=recipe, seed=seed, top=top + 0.01 * seed, size=size)
            listed.append(
                {"label": label, "folder": label, "settings": {"recipe": recipe, "seed": seed}}
            )
    (folder / "runs.json").write_text(json.dumps(listed))
    return folder


def lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
