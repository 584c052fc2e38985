"""What FLARE adds to a round: three sites on loopback with mutual TLS, small payloads.

    python benchmarks/flare/run.py [--rounds 40]

Trains a linear model on digits for so many rounds, plain and masked, at real site processes and in
this process, and prints JSON: seconds a round at the sites, in-process, and the difference
(`overhead`, to stay at or below 0.5), with the traffic of both. The first rounds, in which
sites load their data, do not count. `wire`: bytes a round through the coordinator's port, where
`ss` can tell: with TLS, gRPC, FLARE's own messages, and whoever follows the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import cupola
from cupola.engines.flare.federation_settings import FederationSettings
from cupola.engines.flare.submit import submit
from cupola.site.coordinator import unpack

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "flare"))

from trial_federation import Trial

SITES = ["hospital-a", "hospital-b", "hospital-c"]
LEAD = "alice@hospital-a.org"
WARM_UP = 3


def plan(name: str, rounds: int, sums: str) -> dict[str, Any]:
    return {
        "name": name,
        "rounds": rounds,
        "sum": {"kind": sums},
        "data": {"name": "digits", "partition": {"kind": "iid", "sites": len(SITES)}},
        "model": {"name": "linear"},
        "local": {"epochs": 1, "batch_size": 32, "lr": 0.1},
        "evaluation": {"every": rounds},
        "engine": {"timeout": 300},
    }


def seconds_a_round(folder: Path) -> float:
    """The median over rounds, from the history's running clock."""
    lines = (folder / "history.jsonl").read_text().splitlines()
    clock = [json.loads(line)["seconds"] for line in lines]
    steps = [later - earlier for earlier, later in itertools.pairwise(clock)]
    return statistics.median(steps[WARM_UP:])


def traffic(folder: Path) -> dict[str, int]:
    found = json.loads((folder / "result.json").read_text())
    return {"down": found["bytes_down"], "up": found["bytes_up"]}


class Wire:
    """Counts, as a run goes on, what passes through a port."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.known: dict[str, int] = {}  # by connection, also of those that are closed by now
        self.seen: list[tuple[int, int]] = []

    def __call__(self, told: dict[str, Any]) -> None:
        if told.get("round", 0) > WARM_UP and shutil.which("ss"):
            self.look()
            self.seen.append((told["round"], sum(self.known.values())))

    def look(self) -> None:
        call = ["ss", "-tinHO", "state", "established", f"( sport = :{self.port} )"]
        for line in subprocess.run(call, capture_output=True, text=True, check=True).stdout.split(
            "\n"
        ):
            counts = re.findall(r"bytes_(?:sent|received):(\d+)", line)
            if counts:
                self.known[line.split()[3]] = sum(map(int, counts))

    @property
    def a_round(self) -> float | None:
        if len(self.seen) < 2 or self.seen[0][0] == self.seen[-1][0]:
            return None
        (first, before), (last, after) = self.seen[0], self.seen[-1]
        return round((after - before) / (last - first))


def measure(folder: Path, rounds: int) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    settings = FederationSettings(
        name="benchmark",
        coordinator=f"localhost:{port}",
        sites=SITES,
        compensator="university",
        users={LEAD: "lead"},
    )
    data = {name: {"digits": {"part": i}} for i, name in enumerate(SITES)}
    found: dict[str, Any] = {}
    with Trial(folder / "trial", settings, data) as trial:
        jobs = {k: trial.study(k, plan(k, rounds, k)) for k in ("plain", "masked")}
        trial.start()
        trial.wait_until_connected(timeout=300)
        for name, job in jobs.items():
            wire = Wire(port)
            end, packed = submit(job, trial.folders[LEAD], wire)
            if end["state"] != "finished":
                raise SystemExit(f"{name}: {end}")
            real, here = folder / f"{name}-real", folder / f"{name}-here"
            unpack(packed, real)
            cupola.run(plan(name, rounds, name), here, report=False)
            there, alone = seconds_a_round(real), seconds_a_round(here)
            found[name] = {
                "seconds_a_round": there,
                "in_process": alone,
                "overhead": there - alone,
                "bytes": traffic(real),
                "bytes_in_process": traffic(here),
                "wire": wire.a_round,
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=40)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HOME"] = folder  # FLARE keeps notes in it
        print(json.dumps(measure(Path(folder), chosen.rounds), indent=1))


if __name__ == "__main__":
    main()
