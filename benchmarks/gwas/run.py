"""Association tests on the size of the paper: Cupola over three masked cohorts beside PLINK.

    python benchmarks/gwas/run.py --data FOLDER [--people 5343] [--variants 580000]
        [--tests chi-square,linear,logistic] [--repeat 1] [--curves | --only-curves]
        [--plink1 P] [--plink2 P]

Every side is a process of its own: `cpu` is its processor time with everything: start-up, reading,
computing, writing, and of ours all parties and the report. 'start' is ours on 300 people and 500
variants, so that the rest, `beyond_start`, is what the size costs: without the interpreter, imports
and loading of compiled code. PLINK gets one thread and the pooled file. --curves: also cost and
bytes against variants (to 200,000), people (to 8,000) and cohorts (to 12). Prints one JSON document
on stdout, progress on stderr. A PLINK that is not installed is left out.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import turns
from simulate import COVARIATES, simulate

TESTS = ("chi-square", "linear", "logistic")
# Limits of processor time, as ratios, and of megabytes, on the paper's size.
LIMITS = {"chi-square": ("plink1", 1.5), "linear": ("plink2", 1.0), "logistic": ("plink2", 1.0)}
MEGABYTES = {"chi-square": 25, "linear": 480, "logistic": 1700}
AGREEMENT = 30  # megabytes for agreeing on the variants
MEMORY = 2048  # MiB of a cohort
PAPER = (5343, 580_000)
START = (300, 500)


def measured(command: list[str], folder: Path) -> dict[str, Any]:
    """Processor and wall seconds of a command, and its peak memory in MiB."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, used = os.wait4(process.pid, 0)  # its own use, no other child's
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        if process.returncode:
            raise SystemExit(f"{command[0]} failed: {errors.read().decode()[-500:]}")
    wall = time.perf_counter() - start
    return {"cpu": used.ru_utime + used.ru_stime, "wall": wall, "peak_mib": used.ru_maxrss / 1024}


def study(folder: Path, test: str, cohorts: int, masked: bool = True) -> Path:
    """The study file of a test."""
    covariates = [] if test == "chi-square" else list(COVARIATES)
    lines = [
        f'test = "{test}"', f"covariates = {json.dumps(covariates)}", "workers = 1",
        f'sum = {{ kind = "{"masked" if masked else "plain"}", minimum = {min(3, cohorts)} }}',
        "checkpoint_seconds = 60", 'variants = "c0.bim"',
        f'trait.column = "{"QT" if test == "linear" else "CC"}"',
    ]  # fmt: skip
    for i in range(cohorts):
        lines += ["[[cohorts]]"] + [
            f'{key} = "c{i}{end}"'
            for key, end in (("name", ""), ("bfile", ""), ("pheno", ".pheno"), ("cov", ".cov"))
        ]
    path = folder / f"{test}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def cupola(folder: Path, test: str, cohorts: int = 3) -> dict[str, Any]:
    path, out = study(folder, test, cohorts), folder / f"out-{test}"
    command = [sys.executable, "-m", "cupola", "gwas", "run", str(path), "-o", str(out)]
    found = measured([*command, "--overwrite", "--quiet"], folder)
    result = json.loads((out / "result.json").read_text())
    entries = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    own = {name: result[name] for name in ("seconds", "cpu_seconds", "tested")}
    return {**found, **own, **_bytes(entries)}


def _bytes(entries: list[dict[str, Any]]) -> dict[str, float]:
    """Megabytes of agreeing on variants, and of everything else, all parties and directions."""
    agreeing = {e["step"] for e in entries if e["task"] in ("gwas propose", "gwas agree")}
    total = {True: 0, False: 0}
    for e in entries:
        up = e["bytes_up"] if isinstance(e["bytes_up"], list) else [e["bytes_up"]] * len(e["sites"])
        sent = e["bytes_down"] * (len(e["sites"]) + len(e["failed"])) + sum(up)
        total[e["step"] in agreeing] += sent
    return {"agreement_mb": total[True] / 1e6, "test_mb": total[False] / 1e6}


def plink1(binary: str, folder: Path, test: str) -> dict[str, Any]:
    kind = {"chi-square": ["--assoc"], "linear": ["--linear", "hide-covar"],
            "logistic": ["--logistic", "hide-covar"]}[test]  # fmt: skip
    return measured(
        [binary, *_pooled(test), *kind, "--threads", "1", "--out", f"p1-{test}"], folder
    )


def plink2(binary: str, folder: Path, test: str) -> dict[str, Any]:
    kind = ["--glm", "hide-covar", "no-firth", "--covar-variance-standardize"]
    return measured(
        [binary, *_pooled(test), *kind, "--threads", "1", "--out", f"p2-{test}"], folder
    )


def _pooled(test: str) -> list[str]:
    trait = "QT" if test == "linear" else "CC"
    files = ["--bfile", "all", "--pheno", "all.pheno", "--pheno-name", trait]
    return files if test == "chi-square" else [*files, "--covar", "all.cov"]


def compare(options: argparse.Namespace, test: str) -> dict[str, Any]:
    """All sides in turn, their medians, and the ratios."""
    folder = options.data
    simulate(folder, options.people, options.variants)
    simulate(folder / "start", *START)
    sides = {
        "cupola": lambda: cupola(folder, test),
        "start": lambda: cupola(folder / "start", test),
    }
    if shutil.which(options.plink1) and not (options.no_slow and test != "chi-square"):
        sides["plink1"] = lambda: plink1(options.plink1, folder, test)
    if shutil.which(options.plink2) and test != "chi-square":
        sides["plink2"] = lambda: plink2(options.plink2, folder, test)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in sides}
    for _ in range(options.repeat):
        for side, step in sides.items():
            found[side].append(step())
            turns.say(f"  {test} {side}: {found[side][-1]}")
    facts: dict[str, Any] = {"sides": found}
    for name, start in (("cpu_over", 0.0), ("beyond_start_over", 1.0)):
        facts[name] = {
            side: round(median(_ratios(found, side, start)), 3)
            for side in sides
            if side.startswith("plink")
        }
    if (options.people, options.variants) == PAPER:
        facts["holds"] = _holds(test, found["cupola"][-1], facts)
    return facts


def _ratios(found: dict[str, list[dict[str, Any]]], side: str, start: float) -> list[float]:
    """Processor time over another side's, turn by turn; start: the share of ours to take off."""
    turns = zip(found["cupola"], found["start"], found[side])
    return [(a["cpu"] - start * s["cpu"]) / b["cpu"] for a, s, b in turns]


def _holds(test: str, ours: dict[str, Any], facts: dict[str, Any]) -> dict[str, bool | None]:
    peer, limit = LIMITS[test]
    whole, beyond = (facts[n].get(peer) for n in ("cpu_over", "beyond_start_over"))
    return {
        "time": None if whole is None else whole <= limit,
        "time_beyond_start": None if beyond is None else beyond <= limit,
        "bytes": ours["test_mb"] <= MEGABYTES[test],
        "agreement_bytes": ours["agreement_mb"] <= AGREEMENT,
        "memory": ours["peak_mib"] <= MEMORY,
    }


def curves(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Cost and bytes against variants, people and cohorts, one at a time."""
    people = [max(300, n * options.people // PAPER[0]) for n in (2000, 4000, 8000)]
    variants = [max(500, m * options.variants // PAPER[1]) for m in (50_000, 100_000, 200_000)]
    points = [(people[0], m, 3) for m in variants]
    points += [(n, variants[0], 3) for n in people[1:]]
    points += [(people[0], variants[0], cohorts) for cohorts in (6, 12)]
    rows = []
    for n, m, cohorts in points:
        folder = options.data / f"{n}-{m}-{cohorts}"
        simulate(folder, n, m, cohorts=cohorts)
        for test in options.tests:
            row = {"people": n, "variants": m, "cohorts": cohorts, "test": test}
            rows.append({**row, **cupola(folder, test, cohorts)})
            turns.say(f"  {rows[-1]}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--people", type=int, default=PAPER[0])
    parser.add_argument("--variants", type=int, default=PAPER[1])
    parser.add_argument("--tests", type=lambda text: text.split(","), default=list(TESTS))
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--only-curves", action="store_true", help="no peers, no full size")
    parser.add_argument("--no-slow", action="store_true", help="PLINK 1.9 for chi-square only")
    parser.add_argument("--plink1", default="plink1.9")
    parser.add_argument("--plink2", default="plink2")
    options = parser.parse_args()
    report: dict[str, Any] = {"people": options.people, "variants": options.variants}
    if not options.only_curves:
        report["tests"] = {test: compare(options, test) for test in options.tests}
    if options.curves or options.only_curves:
        report["curves"] = curves(options)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
