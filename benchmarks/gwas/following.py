"""What it costs that cohorts follow a study: bytes of witnessed totals, and seconds.

    python benchmarks/gwas/following.py --data FOLDER [--people 2000] [--variants 20000]
        [--tests linear,logistic] [--cohorts 3]

Made-up cohorts (see `simulate`), masked sums, all parties in this process, each cohort with a copy
of the program of its own, as real ones have. 'plain path': the same without telling cohorts the
totals. 'score first': what would be left if only variants with a P below 1e-3 went on to the full
model: every variant's first sums, and all of the few that go on. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from run import study
from simulate import simulate

from cupola.analysis.plan_file import load
from cupola.analysis.simulated import federation
from cupola.association import results
from cupola.association.analysis import AssociationAnalysis
from cupola.association.plan import StudyPlan
from cupola.federation import Ledger, Replay, drive
from cupola.secure.replayed_totals import Witnessed

LOOKED_AT = 1e-3  # of the score test, beyond which a variant would be left


def once(plan: Any, followed: bool) -> dict[str, Any]:
    analysis, entries = AssociationAnalysis(plan), []
    host = analysis.host()
    program = analysis.program(host)
    start = time.process_time()
    with (
        tempfile.TemporaryDirectory() as folder,
        federation(analysis, host, Ledger(entries.append), Path(folder)) as reach,
    ):
        if followed:
            for i in range(len(plan.cohorts)):
                own = replace(program, listed=None, public=program.public)
                reach.engine.parties(i).replay = Replay(own, witnessed=True)
            reach = Witnessed(reach)
        state = drive(program, reach)
    found = results(program, state)
    return {
        "cpu_seconds": time.process_time() - start,
        "entries": entries,
        "log10_p": found.log10_p,
    }


def bytes_of(entries: list[dict[str, Any]], *kinds: str) -> int:
    total = 0
    for entry in entries:
        if entry["kind"] in kinds:
            many = len(entry["sites"]) + len(entry["failed"])
            up = entry["bytes_up"]
            total += entry["bytes_down"] * many
            total += sum(up) if isinstance(up, list) else up * len(entry["sites"])
    return total


def measured(plan: Any) -> dict[str, Any]:
    import numpy as np

    plain, followed = once(plan, False), once(plan, True)
    same = np.array_equal(plain["log10_p"], followed["log10_p"], equal_nan=True)
    told = [entry for entry in followed["entries"] if entry["kind"] == "tell"]
    full = [entry for entry in told if entry["task"] in ("gwas newton", "gwas firth")]
    tested = followed["log10_p"][np.isfinite(followed["log10_p"])]
    few = float(np.mean(tested < np.log10(LOOKED_AT)))
    tells = bytes_of(told, "tell")
    return {
        "same_digits": bool(same),
        "megabytes_plain_path": bytes_of(plain["entries"], "sum", "gather", "unmask") / 1e6,
        "megabytes_told": tells / 1e6,
        "megabytes_told_score_first": (tells - (1 - few) * bytes_of(full, "tell")) / 1e6,
        "share_that_would_go_on": few,
        "cpu_seconds_plain_path": plain["cpu_seconds"],
        "cpu_seconds_followed": followed["cpu_seconds"],
        "steps": len(told),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--people", type=int, default=2000)
    parser.add_argument("--variants", type=int, default=20_000)
    parser.add_argument("--tests", default="chi-square,linear,logistic")
    parser.add_argument("--cohorts", type=int, default=3)
    options = parser.parse_args()
    options.data.mkdir(parents=True, exist_ok=True)
    simulate(options.data, options.people, options.variants, cohorts=options.cohorts)
    found = {
        test: measured(load(study(options.data, test, options.cohorts), of=StudyPlan))
        for test in options.tests.split(",")
    }
    settings = {name: getattr(options, name) for name in ("people", "variants", "cohorts")}
    print(json.dumps({"settings": settings, "tests": found}, indent=1))


if __name__ == "__main__":
    main()
