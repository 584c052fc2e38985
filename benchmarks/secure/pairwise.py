"""Cost of pairwise masks beside the compensator's, on the same numbers in the same run.

    python benchmarks/secure/pairwise.py [--sites 10] [--values 1000000] [--repeat 5]

Each site holds so many float32 numbers. A site's time is all it does for one sum: keys, signatures,
shares, range check, encoding, checksum, masks; what it verifies is verified by each site anew, as
if each had a process of its own. One core. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from cupola.engines import InProcess, masked_sums
from cupola.federation import Contribution, Failure, Question, SiteContext, Spec, task
from cupola.federation.ledger import COMPENSATOR, Ledger
from cupola.secure import identity, simulated_parties


class Numbers:
    def __init__(self, sites: int, values: int) -> None:
        random = np.random.default_rng(1)
        self.held = [random.uniform(-1, 1, values).astype(np.float32) for _ in range(sites)]

    def __len__(self) -> int:
        return len(self.held)

    def data(self, site: int) -> np.ndarray:
        return self.held[site]

    def workspace(self) -> None:
        return None


@task("benchmark numbers")
def numbers(site: SiteContext, _: Question) -> Contribution:
    return Contribution({"x": site.data})


class Clocked(InProcess):
    """Seconds of each site and of each phase; `gone`: sites that fall silent at this task."""

    def __init__(self, *arguments: Any, gone: dict[int, str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.seconds: dict[int, float] = defaultdict(float)
        self.phases: dict[str, float] = defaultdict(float)
        self.gone, self.silent = gone, set[int]()

    def ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        for site in sites:
            if self.gone.get(site) == question.task:
                self.silent.add(site)
            if site in self.silent:
                yield site, Failure("late")
                continue
            identity._verified.cache_clear()
            start = time.process_time()
            ((_, answer),) = super().ask(question, [site])
            spent = time.process_time() - start
            self.seconds[site] += spent
            self.phases[question.task] += spent
            yield site, answer


def measure(host: Numbers, protocol: str, bits: int, gone: dict[int, str], step: int) -> dict:
    sites = len(host)
    parties = simulated_parties(f"benchmark {step}", seed=1, sites=sites, protocol=protocol)
    ledger = Ledger()
    engine = Clocked(host, gone=gone, parties=parties.member, workers=1, ledger=ledger)
    expects = {"x": Spec(host.held[0].shape, "float", 1.0, bits)}
    question = Question("benchmark numbers", expects=expects, step=step, round=step)
    with masked_sums(engine, parties) as federation:
        start = time.process_time()
        total = federation.sum(question, range(sites))
        whole = time.process_time() - start
    exact = np.sum([host.held[site].astype(np.float64) for site in total.sites], axis=0)
    alive = [site for site in range(sites) if site not in gone]
    return {
        "site": max(engine.seconds[site] for site in alive) * 1e3,
        "rest": (whole - sum(engine.seconds.values())) * 1e3,
        "phases": {name: spent * 1e3 / sites for name, spent in engine.phases.items()},
        "up": max(ledger.up[site] for site in alive),
        "down": max(ledger.down[site] for site in alive),
        "third": ledger.up.get(COMPENSATOR, 0) + ledger.down.get(COMPENSATOR, 0),
        "error": float(np.abs(total.arrays["x"] - exact).max()),
        "survivors": len(total.sites),
    }


def summary(results: list[dict]) -> dict:
    """Medians of the times; sizes are always the same."""
    first = results[0]
    times = {
        "site ms": median(r["site"] for r in results),
        "everybody else ms": median(r["rest"] for r in results),
        "ms per phase": {n: median(r["phases"][n] for r in results) for n in first["phases"]},
    }
    sizes = {
        "bytes up per site": first["up"],
        "bytes down per site": first["down"],
        "bytes of the third party": first["third"],
        "largest error": max(r["error"] for r in results),
        "survivors": first["survivors"],
    }
    return {**times, **sizes}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", type=int, default=10)
    parser.add_argument("--values", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    host = Numbers(asked.sites, asked.values)
    drop = dict.fromkeys(range(asked.sites // 5), "pairwise masked")
    cases: dict[str, tuple[str, dict[int, str]]] = {
        "compensator": ("compensator", {}),
        "pairwise": ("pairwise", {}),
        "pairwise, a fifth drops out": ("pairwise", drop),
    }
    results: dict[str, list[dict]] = defaultdict(list)
    for turn in range(asked.repeat + 1):
        for bits in (32, 64):
            for name, (protocol, gone) in cases.items():
                found = measure(host, protocol, bits, gone, turn)
                if turn:  # the first one warms up
                    results[f"{name}, {bits} bits"].append(found)
    report = {name: summary(found) for name, found in results.items()}
    print(json.dumps({"settings": vars(asked), **report}, indent=1))


if __name__ == "__main__":
    main()
