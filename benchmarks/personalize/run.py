"""Time and memory of FSC + CSM (comparing vectors, making groups) against the number of sites.

    python benchmarks/personalize/run.py > personalize.json

The full matrix with average linkage up to 10,000 sites; one and three references up to 100,000.
Vectors of 30 channels around 5 kinds. Each case runs in a process of its own, once for its time and
once for its memory: `peak_mb` is the largest amount that arrays take beyond the vectors.
`exponent`: slope of log time over log sites between the two largest.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import sys
import time
import tracemalloc
from typing import Any

import numpy as np

SITES = (1_000, 10_000, 100_000)
CHANNELS, KINDS, SEED = 30, 5, 0


def case(sites: int, references: int, count: int | None) -> dict[str, Any]:
    from cupola.training.personalise.grouping import from_matrix, from_references
    from cupola.training.personalise.outcome import agreement
    from cupola.training.personalise.similarity import draw_references, pairs, to_references

    rng = np.random.default_rng(SEED)
    types = rng.integers(0, KINDS, sites)
    centres = rng.random((KINDS, CHANNELS))
    vectors = (centres[types] + 0.02 * rng.standard_normal((sites, CHANNELS))).astype(np.float32)

    def groups() -> np.ndarray:
        if not references:
            return from_matrix(pairs(vectors), count)
        places = draw_references(sites, references, SEED)
        return from_references(to_references(vectors, places), count)

    began = time.process_time()
    labels = groups()
    took = time.process_time() - began
    tracemalloc.start()
    groups()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {
        "sites": sites,
        "references": references,
        "groups": "given" if count else "found",
        "seconds": round(took, 4),
        "peak_mb": round(peak / 2**20, 1),
        "groups_made": int(labels.max()) + 1,
        "ari": round(agreement(labels, types)["ari"], 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sites", type=int, nargs="+", default=SITES)
    given = parser.parse_args()
    rows = []
    fresh = multiprocessing.get_context("spawn")
    for references in (0, 1, 3):
        for count in (KINDS, None):
            for sites in given.sites:
                if not references and sites > 10_000:
                    continue
                with fresh.Pool(1) as pool:
                    rows.append(pool.apply(case, (sites, references, count)))
                print(rows[-1], file=sys.stderr)
    slopes = {}
    for references in (0, 1, 3):
        for groups in ("given", "found"):
            some = [r for r in rows if (r["references"], r["groups"]) == (references, groups)][-2:]
            if len(some) == 2:
                slope = math.log(some[1]["seconds"] / max(some[0]["seconds"], 1e-4))
                slope /= math.log(some[1]["sites"] / some[0]["sites"])
                slopes[f"{references} references, {groups}"] = round(slope, 2)
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"cases": rows, "exponent": slopes, "machine": machine}, indent=2))


if __name__ == "__main__":
    main()
