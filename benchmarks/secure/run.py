"""Cost of masked sums: against Flower's SecAgg+, in a round of training, and in bytes.

    python benchmarks/secure/run.py [--environments build/peers] [--repeat 7]

vectors: 1 M numbers from each of 10 sites, 64-bit modulus, everything a party does: range check,
encoding, checksum, mask, sealing, signing. Flower's functions run on the same numbers in its
own environment (made by `benchmarks/simulation/run.py`), in turn with ours, one core each.
round: an epoch of ResNet-18 (11.2 M parameters) on 32x32 images, batch 32, clipped updates, 32-bit
modulus: the time of masking over that of training, in the same run; and the bytes.
Prints one JSON document on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import parties
import torch

from cupola.federation.message import contribution_size
from cupola.federation.site import find_task

LIMITS = {
    "Flower over Cupola, site": 10.0,
    "error of the sum": 1e-9,
    "masking over training": 0.05,
    "bytes over plain float32": 1.05,
}
BOUND = 8.0  # Flower clips there


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def flower(python: Path, path: Path) -> dict[str, Any]:
    """Flower's side, in a process of its own."""
    script = Path(__file__).with_name("flower_side.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, script, path], capture_output=True, text=True, check=False, env=environment
    )
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or ["Flower said nothing"])[-1])
    return json.loads(done.stdout.splitlines()[-1])


def best(turns: list[dict[str, Any]], party: str) -> dict[str, float]:
    """The least milliseconds of a party over the turns: what disturbs only adds."""
    return {
        kind: round(1e3 * min(turn[party][kind] for turn in turns), 3) for kind in ("wall", "cpu")
    }


def vectors(options: argparse.Namespace) -> dict[str, Any]:
    say(f"vectors: {options.sites} sites, {options.values} numbers")
    random = np.random.default_rng(1)
    values = random.standard_normal((options.sites, options.values), np.float32)
    np.clip(values, -7.9, 7.9, out=values)
    exact = values.astype(np.longdouble).sum(axis=0)
    python = options.environments.absolute() / "flwr" / "bin" / "python"
    ours: list[dict[str, Any]] = []
    theirs: list[dict[str, Any]] = []
    error = 0.0
    parties.vectors(values[:, :1000].copy(), BOUND)  # warm up
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "values.npy"
        np.save(path, values)
        for _ in range(options.repeat):
            total, times = parties.vectors(values, BOUND)
            ours.append(times)
            error = max(error, float(np.abs(total - exact).max()))
            if python.exists():
                theirs.append(flower(python, path))
    found: dict[str, Any] = {
        "cupola": {party: best(ours, party) for party in ours[0]} | {"error": error},
        "float32 sum": {"error": float(np.abs(values.sum(axis=0) - exact).max())},
    }
    if theirs:
        milliseconds = {
            party: best(theirs, party) for party in ("site", "site's bytes", "coordinator")
        }
        facts = {"error": max(t["error"] for t in theirs), "version": theirs[0]["version"]}
        found["flower"] = milliseconds | facts
        for kind in ("wall", "cpu"):
            for parts in (["site"], ["site", "site's bytes"]):
                a, b = ([sum(t[p][kind] for p in parts) for t in side] for side in (theirs, ours))
                found[f"Flower over Cupola, {' and '.join(parts)}, {kind}"] = {
                    "of the best": round(min(a) / min(b), 1),
                    "median of turns": round(median(x / y for x, y in zip(a, b)), 1),
                }
    else:
        say("  without Flower: run benchmarks/simulation/run.py first, or name --environments")
    say(f"  {json.dumps(found)}")
    return found


def training(options: argparse.Namespace) -> dict[str, Any]:
    sites = options.round_sites
    say(f"round: {sites} sites, {options.samples} samples each")
    host, question, parameters = parties.training(sites, options.samples)
    clock = parties.counted(find_task(question.task))
    turns = []
    for _ in range(options.rounds):
        _, times = parties.masked_sum(host, question, sites, clock)
        parts = {
            "training": times.inner.less(over=sites),
            "site": times.sites.less(times.inner, over=sites),
            "compensator": times.compensator.less(),
            "coordinator": times.coordinator(),
        }
        parts["all masking"] = {
            kind: sites * parts["site"][kind]
            + parts["compensator"][kind]
            + parts["coordinator"][kind]
            for kind in ("wall", "cpu")
        }
        turns.append(parts)
        say(f"  {json.dumps(parts)}")
    found: dict[str, Any] = {party: best(turns, party) for party in turns[0]}
    for kind in ("wall", "cpu"):
        each = [t["site"][kind] / t["training"][kind] for t in turns]
        everything = [t["all masking"][kind] / (sites * t["training"][kind]) for t in turns]
        found[f"masking over training, {kind}"] = {
            "at a site": round(median(each), 4),
            "of all parties, one after another": round(median(everything), 4),
        }
    shapes = {n: np.broadcast_to(np.float32(0), s.shape) for n, s in question.expects.items()}
    plain, up, third = contribution_size(shapes), times.bytes_up, times.bytes_compensator
    found |= {
        "parameters": parameters,
        "bytes": {"plain float32": plain, "masked": up, "compensator": third},
        "bytes over plain float32": round(up / plain, 5),
        "with the compensator's, 10 sites": round((10 * up + third) / (10 * plain), 5),
    }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default="vectors,round", help="vectors, round, or both")
    parser.add_argument("--environments", type=Path, default=Path("build/peers"))
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--round-sites", type=int, default=3)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    document: dict[str, Any] = {
        "machine": {
            "cores": os.cpu_count(),
            "threads": options.threads,
            "load_before": os.getloadavg()[0],
            "python": platform.python_version(),
            **{package: version(package) for package in ("torch", "numpy", "cryptography")},
        },
        "limits": LIMITS,
    }
    for name, measure in (("vectors", vectors), ("round", training)):
        if name in options.parts.split(","):
            document[name] = measure(options)
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
