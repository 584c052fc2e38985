"""Wall time beside PLINK with all cores for both, and bytes with a score test first.

    python benchmarks/gwas/speed.py --data FOLDER [--people 5343] [--variants 580000]
        [--missing 0.005] [--repeat 3] [--sides ...] [--out speed.json]

Sides take turns in one run: Cupola with three masked cohorts in one process, PLINK 1.9 and PLINK 2
on the pooled file, each with --threads threads (default: the cores). 'score' is logistic regression
with score.below = 0.01, 'saddle' with a saddle point below 0.05, 'wide' with 14 covariates and
score.below = 0.01. `load`: of the machine before each, from the operating system: with a busy
machine only ratios mean something. Prints one JSON document and adds it to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import run  # noqa: E402
import turns  # noqa: E402
from simulate import COVARIATES, simulate  # noqa: E402

from cupola.base.cores import cores  # noqa: E402
from cupola.base.randomness import generator  # noqa: E402

WIDE = 14
CHUNK = 16384  # of some 2,000 people a cohort: fewer questions
EXTRA = {
    "score": ("logistic", {"score.below": 0.01}),
    "saddle": ("logistic", {"score.below": 0.05, "score.then": "saddle-point"}),
    "wide": ("logistic", {"score.below": 0.01}),
}
OURS = ("chi-square", "linear", "logistic", *EXTRA)
PEERS = {
    "plink1 chi-square": "chi-square",
    "plink2 linear": "linear",
    "plink2 logistic": "logistic",
}
ASKED = ("cupola start", *(f"cupola {name}" for name in OURS), *PEERS)


def widened(folder: Path) -> None:
    """More covariates beside the four, in files of their own (.wide)."""
    for path in sorted(folder.glob("*.cov")):
        lines = path.read_text().splitlines()
        names = [f"C{i}" for i in range(WIDE - len(COVARIATES))]
        draw = generator(1, f"wide {path.name}").normal(size=(len(lines) - 1, len(names))).round(3)
        rows = [f"{line} {' '.join(map(str, row))}" for line, row in zip(lines[1:], draw)]
        path.with_suffix(".wide").write_text(
            "\n".join([f"{lines[0]} {' '.join(names)}", *rows, ""])
        )


def study(folder: Path, name: str) -> Path:
    """The study file of one of ours."""
    test, more = EXTRA.get(name, (name, {}))
    text = run.study(folder, test, 3).read_text()
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in more.items())
    text = text.replace("[[cohorts]]", lines + "[[cohorts]]", 1)
    if name == "wide":
        text = text.replace('.cov"', '.wide"')
        every = [*COVARIATES, *(f"C{i}" for i in range(WIDE - len(COVARIATES)))]
        text = text.replace(json.dumps(list(COVARIATES)), json.dumps(every))
    path = folder / f"{name}.toml"
    path.write_text(text.replace("workers = 1\n", f"chunk = {CHUNK}\n"))
    return path


def ours(folder: Path, name: str) -> dict[str, Any]:
    path, out = study(folder, name), folder / f"out-{name}"
    command = [sys.executable, "-m", "cupola", "gwas", "run", str(path), "-o", str(out)]
    found = run.measured([*command, "--overwrite", "--quiet"], folder)
    entries = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    return {**found, **run._bytes(entries), "questions": len(entries)}


def plink(folder: Path, side: str, threads: int) -> dict[str, Any]:
    test = PEERS[side]
    kind = ["--glm", "hide-covar", "no-firth", "--covar-variance-standardize"]
    kind = ["--assoc"] if test == "chi-square" else kind
    binary = "plink1.9" if side.startswith("plink1") else "plink2"
    out = side.replace(" ", "-")
    command = [binary, *run._pooled(test), *kind, "--threads", str(threads), "--out", out]
    return run.measured(command, folder)


def measured(side: str, folder: Path, threads: int) -> dict[str, Any]:
    before = {"load": round(os.getloadavg()[0], 1)}
    if side == "cupola start":
        found = ours(folder / "start", "chi-square")
    elif side.startswith("cupola"):
        found = ours(folder, side.split()[1])
    else:
        found = plink(folder, side, threads)
    turns.say(f"  {side}: {found}")
    return {**before, **{key: round(value, 3) for key, value in found.items()}}


def ratios(found: dict[str, list[dict[str, Any]]]) -> dict[str, float]:
    """Medians over turns, in wall time: how many times as long a peer takes; for chi-square, ours
    beyond the start over PLINK's."""
    told: dict[str, float] = {}
    for name in ("linear", "logistic", "score", "saddle"):
        peer = "plink2 linear" if name == "linear" else "plink2 logistic"
        pairs = zip(found.get(f"cupola {name}", ()), found.get(peer, ()))
        if apart := [theirs["wall"] / own["wall"] for own, theirs in pairs]:
            told[f"{peer} / cupola {name}"] = round(median(apart), 2)
    sides = ("cupola chi-square", "cupola start", "plink1 chi-square")
    three = list(zip(*(found.get(side, ()) for side in sides)))
    for unit in ("wall", "cpu") if three else ():
        beyond = median((a[unit] - s[unit]) / b[unit] for a, s, b in three)
        told[f"cupola chi-square beyond the start / plink1, {unit}"] = round(beyond, 2)
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--people", type=int, default=run.PAPER[0])
    parser.add_argument("--variants", type=int, default=run.PAPER[1])
    parser.add_argument("--missing", type=float, default=0.005)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=cores())
    parser.add_argument("--sides", type=lambda text: text.split(","), default=list(ASKED))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    os.environ["CUPOLA_THREADS"] = str(options.threads)
    simulate(options.data, options.people, options.variants, options.missing)
    simulate(options.data / "start", *run.START)
    widened(options.data)
    found: dict[str, list[dict[str, Any]]] = {side: [] for side in options.sides}
    for _ in range(options.repeat):
        for side in options.sides:
            found[side].append(measured(side, options.data, options.threads))
    facts = {name: getattr(options, name) for name in ("people", "variants", "missing", "threads")}
    report = {**facts, "chunk": CHUNK, "cores": cores(), "ratios": ratios(found), "sides": found}
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.exists() else []
        options.out.write_text(json.dumps([*before, report], indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
