"""Imputed genotypes: three cohorts in three formats against plink2 --glm over the pooled people.

    python benchmarks/gwas/dosages.py --data FOLDER [--people 2000] [--variants 5000]

FOLDER is made and filled by plink2 (.pgen; BGEN 1.2 with 16 bits; VCF with DS). Printed as JSON:
the largest differences, seconds of both, megabytes that are sent, and those of hard calls.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import time
from pathlib import Path

import numpy as np
from pyarrow import parquet

import cupola

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/association"))
import imputed


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--people", type=int, default=2000)
    parser.add_argument("--variants", type=int, default=5000)
    given = parser.parse_args()
    given.data.mkdir(parents=True, exist_ok=True)
    base = imputed.make(given.data, given.people, given.variants, missing=0.01)
    three, found = (imputed.cohorts(base, given.people), None), {}
    forms = {
        "one .pgen": imputed.one_file(base, "pgen", given.people),
        "one BGEN": imputed.one_file(base, "bgen", given.people),
        ".pgen, BGEN, VCF": three,
    }
    imputed.plink2("--pfile", base, "--make-bed", "--hard-call-threshold", "0.4999",
                   out=given.data / "hard")  # fmt: skip
    calls = [{**one, "bfile": "hard", "pfile": None} for one in forms["one .pgen"][0]]
    for test, trait in (("linear", "QT"), ("logistic", "CC")):
        plan = {
            "kind": "association", "name": test, "test": test, "trait": {"column": trait},
            "covariates": ["AGE", "DOSE"], "dosages": True, "tables": ["plink", "parquet"],
            "sum": {"kind": "masked"}, "folder": str(given.data),
        }  # fmt: skip
        for name, (cohorts, source) in forms.items():
            started = time.perf_counter()
            run = fresh({**plan, "cohorts": cohorts}, given.data / test)
            seconds, started = time.perf_counter() - started, time.perf_counter()
            more = [] if test == "linear" else ["no-firth"]
            told = imputed.glm(base, trait, *more, source=source)
            theirs = time.perf_counter() - started
            found[f"{test}, {name}"] = {
                **differences(run.folder, told, test), "seconds": round(seconds, 1),
                "plink2_seconds": round(theirs, 1), "megabytes": megabytes(run),
            }  # fmt: skip
        beside = fresh({**plan, "dosages": False, "cohorts": calls}, given.data / f"{test}-calls")
        found[f"{test}, hard calls"] = {"megabytes": megabytes(beside)}
    print(json.dumps(found, indent=2))


def fresh(plan: dict, folder: Path) -> cupola.Run:
    shutil.rmtree(folder, ignore_errors=True)
    return cupola.run(plan, folder, report=False)


def megabytes(run: cupola.Run) -> float:
    return round((run.result["bytes_down"] + run.result["bytes_up"]) / 1e6, 2)


def differences(folder: Path, told: dict, test: str) -> dict:
    """The largest of the effect (BETA, or OR, relative; or of a standard error, if that is
    less), of SE and P (relative), and variants that only one of them has a number for."""
    (path,) = folder.glob("*.parquet")
    table = parquet.read_table(path).to_pydict()
    worst, alone = {"effect": 0.0, "se": 0.0, "p": 0.0}, 0
    for name, a1, beta, error, p in zip(*(table[n] for n in ("SNP", "A1", "BETA", "SE", "P"))):
        row = told[name]
        if (row["P"] == "NA") != math.isnan(p):
            alone += 1
        if row["P"] == "NA" or math.isnan(p):
            continue
        effect = beta if row["A1"] == a1 else -beta
        ours = effect if test == "linear" else np.exp(effect)
        theirs = float(row["BETA" if test == "linear" else "OR"])
        se = float(row["SE" if test == "linear" else "LOG(OR)_SE"])
        apart = abs(ours - theirs)
        worst["effect"] = max(worst["effect"], min(apart / abs(theirs), apart / se))
        worst["se"] = max(worst["se"], abs(error / se - 1))
        worst["p"] = max(worst["p"], abs(p / float(row["P"]) - 1))
    rounded = {name: float(f"{value:.2g}") for name, value in worst.items()}
    return {"variants": len(table["SNP"]), **rounded, "numbers_in_one_only": alone}


if __name__ == "__main__":
    main()
