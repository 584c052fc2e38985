"""Memory of each party of a study of many people and variants: each cohort a process of its own.

    python benchmarks/gwas/memory.py --data FOLDER [--people 20000] [--variants 1000000]
        [--tests chi-square,score] [--out memory.json]

Cohorts run with engine.kind = 'processes'; this process holds coordinator, compensator and the
report. Every 50 ms the peak of the resident memory of all processes is read from the operating
system: `anonymous` is their own, `resident` also what they have mapped of files. Prints one JSON
document. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import speed  # noqa: E402
import turns  # noqa: E402
from simulate import simulate  # noqa: E402

BLOCK = 20_000  # variants that are drawn
TESTS = ("chi-square", "score")
APART = 'engine = { kind = "processes", timeout = 600, quorum = 1.0 }\n'


def tiled(folder: Path, people: int, variants: int) -> None:
    """Genotypes of some variants again and again, under names and positions of their own."""
    some = min(variants, BLOCK)
    simulate(folder / "block", people, some, pooled=False)
    for path in sorted((folder / "block").glob("c*")):
        whole = folder / path.name
        if whole.exists():
            continue
        with whole.open("wb") as file:
            if path.suffix == ".bed":
                calls = path.read_bytes()
                file.write(calls[:3])
                for start in range(0, variants, some):
                    file.write(calls[3 : 3 + min(some, variants - start) * (len(calls) // some)])
            elif path.suffix == ".bim":
                for i in range(variants):
                    place = 22 * i // variants, i, 1000 + 100 * i
                    file.write(b"%d\trs%d\t0\t%d\tA\tG\n" % (place[0] + 1, *place[1:]))
            else:
                file.write(path.read_bytes())


def children(parent: int) -> list[int]:
    """Processes below one, the nearest first."""
    found, rest = [], [parent]
    while rest:
        own = Path(f"/proc/{rest.pop()}")
        try:
            below = [int(n) for t in own.glob("task/*/children") for n in t.read_text().split()]
        except OSError:
            continue
        found += below
        rest += below
    return found


def held(process: int) -> dict[str, float]:
    """MiB of a process."""
    wanted = {"RssAnon:": "anonymous", "VmRSS:": "resident"}
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return {}
    fields = (line.split() for line in lines)
    return {wanted[f[0]]: int(f[1]) / 1024 for f in fields if f and f[0] in wanted}


def watched(command: list[str], folder: Path) -> dict[str, Any]:
    """Peaks of a command and of the processes that it starts."""
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
    peaks: dict[int, dict[str, float]] = {}
    while process.poll() is None:
        for one in [process.pid, *children(process.pid)]:
            before = peaks.setdefault(one, {})
            for name, size in held(one).items():
                before[name] = max(size, before.get(name, 0.0))
        time.sleep(0.05)
    if process.returncode:
        raise SystemExit(f"{command} failed")
    own = peaks.pop(process.pid)
    cohorts = [peak for peak in peaks.values() if peak.get("anonymous", 0) > 50]
    whole = {name: {"coordinator": round(own[name]), "cohorts": [round(c[name]) for c in cohorts]}
             for name in ("anonymous", "resident")}  # fmt: skip
    return {**whole, "wall": round(time.perf_counter() - start, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--people", type=int, default=20_000)
    parser.add_argument("--variants", type=int, default=1_000_000)
    parser.add_argument(
        "--tests", type=lambda text: text.split(","), default=["chi-square", "score"]
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    tiled(options.data, options.people, options.variants)
    report: dict[str, Any] = {"people": options.people, "variants": options.variants, "mib": {}}
    for name in options.tests:
        path, out = speed.study(options.data, name), options.data / f"out-{name}"
        text = path.read_text().replace(
            "[[cohorts]]",
            '[engine]\nkind = "processes"\ntimeout = 600\nquorum = 1.0\n[[cohorts]]',
            1,
        )
        path.write_text(text)
        command = [sys.executable, "-m", "cupola", "gwas", "run", str(path), "-o", str(out)]
        report["mib"][name] = watched([*command, "--overwrite", "--quiet"], options.data)
        turns.say(f"  {name}: {report['mib'][name]}")
    if options.out is not None:
        before = json.loads(options.out.read_text()) if options.out.exists() else []
        options.out.write_text(json.dumps([*before, report], indent=1) + "\n")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
