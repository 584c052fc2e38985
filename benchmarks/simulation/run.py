"""Run the simulation benchmark: Cupola, pfl-research, Flower and a plain loop, on two cores.

    python benchmarks/simulation/run.py [--workloads w1,w3] [--repeat 3] [--rounds N]

Per workload: a short pilot of every mode of every side, which finds each side's better modes and
how many rounds fill the time; then the better modes (of Cupola: all) in turn, A B C A B C ...;
then the plain loop once more for the losses everybody should have come to. Prints one JSON document
on stdout, progress and a table on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import contract
import peers
import workloads

HERE = Path(__file__).resolve().parent
TOLERANCE = 0.05  # of the way the loss has come, between a side and the reference
CLOSE = 0.6  # a mode this near the side's best in the pilot is measured in full
REFERENCE_SECONDS = 30  # about how long the reference may take


@dataclass
class Side:
    """A script and the interpreter it runs with; without one it is skipped."""

    name: str
    script: str
    python: Path | None
    note: str = ""
    modes: dict[str, list[str]] = field(default_factory=dict)  # by workload


class RunError(Exception):
    """A side's process failed; says how."""


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ask(side: Side, arguments: list[str], timeout: float) -> Any:
    """Run a side and return what the last line of its stdout says, as JSON."""
    environment = {k: v for k, v in os.environ.items() if k not in contract.THREAD_VARIABLES}
    with subprocess.Popen(
        [str(side.python), str(HERE / side.script), *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)  # its helpers too: they share its session
            if isinstance(error, subprocess.TimeoutExpired):
                raise RunError(f"not done after {timeout:.0f} s") from None
            raise
    lines, complaints = out.strip().splitlines(), err.strip().splitlines()
    if process.returncode != 0 or not lines:
        last = complaints[-1] if complaints else "nothing on stderr"
        raise RunError(f"exit code {process.returncode}: {last}")
    try:
        return json.loads(lines[-1])
    except ValueError:
        raise RunError(f"last line of stdout is not JSON: {lines[-1][:80]}") from None


def measure(side: Side, workload: str, mode: str, rounds: int, timeout: float) -> dict[str, Any]:
    result: dict[str, Any] = ask(side, [workload, mode, "--rounds", str(rounds)], timeout)
    rate, loss = result["rounds_per_second"], result["final_loss"]
    say(f"  {workload} {side.name} {mode}: {rate:.3g} rounds/s ({rounds} rounds, loss {loss:.4f})")
    return result


class Benchmark:
    """All sides on all workloads."""

    def __init__(self, sides: list[Side], options: argparse.Namespace) -> None:
        self.sides, self.options = sides, options

    def workload(self, name: str) -> dict[str, Any]:
        """Everything measured of one workload."""
        say(f"{name}: {workloads.WORKLOADS[name].about}")
        failures: list[str] = []
        pilots = self.pilots(name, failures)
        chosen = self.choose(pilots)
        rounds = self.rounds(name, pilots)
        runs: dict[tuple[str, str], list[dict[str, Any]]] = {key: [] for key in chosen}
        for _ in range(self.options.repeat):
            for side in self.sides:
                for key in (k for k in chosen if k[0] == side.name):
                    if key not in rounds:
                        continue  # one round takes longer than --seconds: the pilot must do
                    try:
                        args = (name, key[1], rounds[key], self.options.timeout)
                        runs[key].append(measure(side, *args))
                    except RunError as error:
                        failures.append(f"{side.name} {key[1]}: {error}")
                        say(f"  {failures[-1]}")
        results = [summary(runs[key] or [pilots[key]]) for key in chosen]
        self.compare_losses(name, results, failures)
        return {
            "about": workloads.WORKLOADS[name].about,
            "results": results,
            "ratios": ratios(results),
            "pilots": {f"{s} {m}": r["rounds_per_second"] for (s, m), r in pilots.items()},
            "failures": failures,
        }

    def pilots(self, name: str, failures: list[str]) -> dict[tuple[str, str], dict[str, Any]]:
        """A short run of every mode, by (side, mode)."""
        found: dict[tuple[str, str], dict[str, Any]] = {}
        rounds = workloads.WORKLOADS[name].pilot
        for side in self.sides:
            if side.python is None:
                continue
            try:
                modes = ask(side, [name, "list"], self.options.timeout)
            except RunError as error:
                failures.append(f"{side.name}: {error}")
                say(f"  {failures[-1]}")
                continue
            for mode in modes:
                try:
                    found[side.name, mode] = measure(side, name, mode, rounds, self.options.timeout)
                except RunError as error:
                    failures.append(f"{side.name} {mode}: {error}")
                    say(f"  {failures[-1]}")
        return found

    def choose(self, pilots: dict[tuple[str, str], dict[str, Any]]) -> list[tuple[str, str]]:
        """All modes of Cupola; of everybody else those that may turn out the best."""
        chosen = []
        for side in self.sides:
            mine = [key for key in pilots if key[0] == side.name]
            if side.name != "cupola":
                # a pilot is short and the machine may be busy: leave out only what is far behind
                best = max((pilots[k]["rounds_per_second"] for k in mine), default=0.0)
                mine = [k for k in mine if pilots[k]["rounds_per_second"] >= CLOSE * best]
            chosen += mine
        return chosen

    def rounds(
        self, name: str, pilots: dict[tuple[str, str], dict[str, Any]]
    ) -> dict[tuple[str, str], int]:
        """Timed rounds of each mode that fill --seconds, no more than the reference can follow."""
        if self.options.rounds:
            return dict.fromkeys(pilots, self.options.rounds)
        rates = {key: r["rounds_per_second"] for key, r in pilots.items()}
        loop = max((rate for (side, _), rate in rates.items() if side == "flat-loop"), default=1.0)
        most = max(workloads.WORKLOADS[name].pilot, int(loop * REFERENCE_SECONDS))
        wanted = {key: int(rate * self.options.seconds) for key, rate in rates.items()}
        return {key: min(n, most) for key, n in wanted.items() if n >= 1}

    def compare_losses(self, name: str, results: list[dict[str, Any]], failures: list[str]) -> None:
        """Add to each result the loss of the plain loop after as many rounds, and whether near."""
        totals = sorted({r["warmup"] + r["rounds"] for r in results})
        loop = next((s for s in self.sides if s.name == "flat-loop" and s.python), None)
        if not totals or loop is None:
            return
        arguments = [name, "2-processes", "--rounds", str(totals[-1])]
        arguments += ["--losses-at", ",".join(map(str, totals))]
        try:
            losses = ask(loop, arguments, self.options.timeout)["losses"]
        except RunError as error:
            failures.append(f"reference losses: {error}")
            return
        first = workloads.check_loss(name, workloads.initial_parameters(name))
        for result in results:
            reference = losses[str(result["warmup"] + result["rounds"])]
            deviation = (result["final_loss"] - reference) / abs(first - reference)
            result["reference_loss"] = reference
            result["loss_deviation"] = deviation
            result["loss_agrees"] = bool(abs(deviation) <= TOLERANCE)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Median speed of the repeats; everything else as in the last one."""
    rates = [r["rounds_per_second"] for r in runs]
    return {
        **runs[-1],
        "seconds": median(r["seconds"] for r in runs),
        "rounds_per_second": median(rates),
        "repeats": rates,
        "peak_rss_mb": max(r["peak_rss_mb"] for r in runs),
    }


def ratios(results: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Rounds per second of each Cupola mode against the best mode of each other side."""
    best = best_rates(results)
    return {
        mine["mode"]: {
            side: mine["rounds_per_second"] / rate
            for side, rate in best.items()
            if side != "cupola"
        }
        for mine in results
        if mine["side"] == "cupola"
    }


def best_rates(results: list[dict[str, Any]]) -> dict[str, float]:
    """Rounds per second of the best mode of each side."""
    best: dict[str, float] = {}
    for r in results:
        best[r["side"]] = max(r["rounds_per_second"], best.get(r["side"], 0.0))
    return best


def table(document: dict[str, Any]) -> str:
    """The results for people."""
    rows = [("workload", "side", "mode", "rounds/s", "MB", "loss", "deviation", "x pfl", "x loop")]
    for name, found in document["workloads"].items():
        rates = best_rates(found["results"])
        for r in found["results"]:
            times = [
                f"{r['rounds_per_second'] / rates[other]:.2f}" if other in rates else "-"
                for other in ("pfl", "flat-loop")
            ]
            deviation = f"{100 * r['loss_deviation']:+.1f} %" if "loss_deviation" in r else "-"
            speed, loss = f"{r['rounds_per_second']:.3g}", f"{r['final_loss']:.4f}"
            memory = f"{r['peak_rss_mb']:.0f}"
            rows.append((name, r["side"], r["mode"], speed, memory, loss, deviation, *times))
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)


def hold_cores(cores: int) -> int:
    """Keep this process and its children to so many cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine(cores: int, torch: str) -> dict[str, Any]:
    info = Path("/proc/cpuinfo")
    names = [s for s in info.read_text().splitlines() if "model name" in s] if info.exists() else []
    return {
        "cores_used": cores,
        "cores": os.cpu_count(),
        "processor": names[0].split(":", 1)[1].strip() if names else platform.processor(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch,
        "load_before": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default=",".join(workloads.WORKLOADS), help="a,b,...")
    parser.add_argument("--sides", default="cupola,pfl,flwr,flat-loop", help="a,b,...")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rounds", type=int, help="timed rounds of every run; else by --seconds")
    parser.add_argument("--seconds", type=float, default=6.0, help="aimed length of a timed run")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds one run may take")
    parser.add_argument("--environments", type=Path, default=Path("build/peers"))
    parser.add_argument("--cupola-python", type=Path, default=Path(sys.executable))
    parser.add_argument("--peer-python", default=sys.executable, help="makes the environments")
    options = parser.parse_args()
    names = options.workloads.split(",")
    if unknown := sorted(set(names) - set(workloads.WORKLOADS)):
        parser.error(
            f"no workload {', '.join(unknown)}; there are {', '.join(workloads.WORKLOADS)}"
        )
    wanted = options.sides.split(",")

    cores = hold_cores(2)
    torch = peers.version_of(options.cupola_python, "torch") or "not installed"
    facts = machine(cores, torch)
    sides = [
        Side("cupola", "cupola_side.py", options.cupola_python),
        *(
            Side(peer.name, peer.script, *peers.prepare(peer, options, torch, say))
            for peer in peers.PEERS
            if peer.name in wanted
        ),
        Side("flat-loop", "flat_loop.py", options.cupola_python),
    ]
    sides = [s for s in sides if s.name in wanted]
    for side in sides:
        if not (HERE / side.script).exists():
            side.python, side.note = None, f"{side.script} is not there"
        if side.note:
            say(f"{side.name} is skipped: {side.note}")

    benchmark = Benchmark(sides, options)
    document = {
        "machine": facts,
        "settings": {"repeat": options.repeat, "rounds": options.rounds, "cores": 2},
        "skipped": {s.name: s.note for s in sides if s.note},
        "workloads": {name: benchmark.workload(name) for name in names},
    }
    say("\n" + table(document))
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
