"""kill -9 at random moments of a running training and of a study: is the end the same, bit for bit?

    python benchmarks/damage/kills.py --kills 50 --out benchmarks/damage/kills.json

Real processes, each killed after a random time; the next one resumes. When a run has finished, its
model (or table) and its lines are compared with those of a run that nobody killed, and a new one
begins, until there were enough kills.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # threads of torch do not survive a fork

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

from harm import tell  # noqa: E402
from runs import SMALL, content, study  # noqa: E402

import cupola  # noqa: E402
from cupola.analysis.run_folder import held_plan  # noqa: E402

LONG = SMALL | {"recipe": "scaffold", "rounds": 120}


def train(folder: str) -> None:
    cupola.run(LONG, folder, resume=True, report=False)


def carry_out(folder: str, plan: str) -> None:
    cupola.run(held_plan(Path(plan)), folder, resume=True, report=False)


def killed(
    work: Callable[..., None], facts: tuple[Any, ...], folder: Path, kills: int, seed: int
) -> dict[str, Any]:
    """Kill and resume until there were so many kills; compare every end with the undisturbed."""
    context, draw = get_context("fork"), random.Random(seed)
    whole = folder / "whole"
    began = time.monotonic()
    work(str(whole), *facts)
    took = time.monotonic() - began
    expected = content(whole)
    found = {"kills": 0, "ends": 0, "different": 0, "seconds_undisturbed": round(took, 2)}
    while found["kills"] < kills:
        out = folder / "killed"
        while True:
            child = context.Process(target=work, args=(str(out), *facts))
            child.start()
            child.join(draw.uniform(0, 0.4 * took) if found["kills"] < kills else None)
            if child.exitcode is not None:
                break
            os.kill(child.pid or 0, signal.SIGKILL)
            child.join()
            found["kills"] += 1
        found["ends"] += 1
        found["different"] += child.exitcode != 0 or content(out) != expected
        shutil.rmtree(out)
    return found


def measure(kills: int, place: Path) -> dict[str, Any]:
    base = study("masked study", place / "study")
    return {
        "training": killed(train, (), place / "training", kills, 1),
        "study": killed(carry_out, (str(base.whole),), place / "studies", kills, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = measure(given.kills, Path(place))
    tell(found, given.out)


if __name__ == "__main__":
    main()
