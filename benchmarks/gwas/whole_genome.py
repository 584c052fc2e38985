"""Whole-genome regression beside BOLT-LMM (`--lmmInfOnly`), and for binary traits, on simulated
studies of three cohorts.

    python benchmarks/gwas/whole_genome.py --data FOLDER [--studies "mild;heavy"] [--bolt bolt]

Simulates (see families.py) and prints one JSON document. Quantitative traits: inflation of null
chromosomes, mean chi-square and power at causal variants, for linear regression with ten
components, the same with whole-genome regression, and BOLT (without components); bytes of a cohort
beside the formula, processor seconds of all parties. Binary traits (the highest 30 % and 5 % of the
trait are cases) in five studies: inflation and false positives at 0.001 with both. Their interval
counts variants as independent, which neighbours are not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binom

sys.path.insert(0, str(Path(__file__).resolve().parent))
from families import COMPONENTS, DRAWS, EACH, Draw, simulate
from mixed import HALF, _bytes, bolt, judged, log10p

import cupola

COVARIATES = ("AGE", "MALE")
#: Of binary traits; drawn before any result was looked at.
BINARY = [Draw(seed, 375, related) for seed, related in
          ((5031, 0.25), (5032, 1.0), (5033, 0.25), (5034, 1.0), (5035, 0.25))]  # fmt: skip
CASES = {"CC30": 0.30, "CC5": 0.05}


def add_cases(folder: Path) -> None:
    """Tables .cc: the highest shares of the trait, of all people, are cases."""
    rows = [line.split() for line in (folder / "all.pheno").read_text().splitlines()[1:]]
    trait = {row[1]: float(row[2]) for row in rows}
    limits = [np.quantile(list(trait.values()), 1 - share) for share in CASES.values()]
    for name in ("c0", "c1", "c2"):
        people = [line.split()[1] for line in (folder / f"{name}.fam").read_text().splitlines()]
        lines = [f"{p} {p} " + " ".join(str(1 + (trait[p] > at)) for at in limits) for p in people]
        text = "FID IID " + " ".join(CASES) + "\n" + "\n".join(lines) + "\n"
        (folder / f"{name}.cc").write_text(text)


def ours(folder: Path, trait: str, genome: bool) -> dict[str, Any]:
    """A study of the three cohorts, with ten components."""
    name = f"{trait}-{'genome' if genome else 'plain'}"
    pheno = "pheno" if trait == "QT" else "cc"
    plan = {
        "kind": "association", "name": name, "test": "linear" if trait == "QT" else "logistic",
        "covariates": [*COVARIATES, *COMPONENTS], "trait": {"column": trait}, "sex_on_x": False,
        "folder": str(folder), "variants": "all.bim", "tables": ["parquet"],
        "cohorts": [{"name": c, "bfile": c, "pheno": f"{c}.{pheno}", "cov": f"{c}.cov"}
                    for c in ("c0", "c1", "c2")],
    }  # fmt: skip
    plan |= {"whole_genome": {}} if genome else {}
    before, start = time.process_time(), time.perf_counter()
    run = cupola.run(plan, folder / f"out-{name}", report=False, overwrite=True)
    cpu = time.process_time() - before
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(run.folder / f"{name}.parquet").to_pydict()
    found = {key: np.array(table[key], float) for key in ("BETA", "SE")}
    entries = [json.loads(line) for line in (run.folder / "ledger.jsonl").read_text().splitlines()]
    facts = run.result.whole_genome
    return {
        "cpu": cpu, "wall": time.perf_counter() - start, "beta": found["BETA"],
        "names": np.array(table["SNP"] if "SNP" in table else table["name"]),
        "error": found["SE"], "a1": np.array(table["A1"]), "bytes": _bytes(entries),
        "chi2": (found["BETA"] / found["SE"]) ** 2,
        "facts": None if facts is None else facts.model_dump(),
    }  # fmt: skip


def formula(facts: dict[str, Any], block: int, columns: int, folds: int = 5) -> dict[str, int]:
    """structure.md's, one ridge: numbers of 64 bits. columns: covariates and the intercept."""
    m, c = facts["markers"], facts["blocks"]
    return {
        "level 0, up": 8 * round(m * (m / c + columns) ** 2 / (2 * m / c) + folds * m),
        "level 1, up": 8 * folds * c * (c + 1) // 2,
        "down": 8 * round(folds * m * (1 + columns * c / m)),
        "block": block,
    }


def nulls(found: dict[str, Any]) -> np.ndarray:
    """Statistics of even chromosomes."""
    chromosome = np.array([int(name[1:].split("_")[0]) for name in found["names"].tolist()])
    return found["chi2"][(chromosome % 2 == 0) & np.isfinite(found["chi2"])]


def quantitative(folder: Path, binary: str) -> dict[str, Any]:
    """One study: ours with and without, and BOLT."""
    reference = bolt(binary, folder, list(COVARIATES))
    rows = {}
    for name, genome in (("linear + PC", False), ("whole genome + PC", True)):
        found = ours(folder, "QT", genome)
        rows[name] = {**judged(folder, found, reference), "cpu": found["cpu"],
                      "bytes_of_a_cohort": found["bytes"], "facts": found["facts"]}  # fmt: skip
        if found["facts"]:
            people = len((folder / "all.fam").read_text().splitlines())
            block = 200 if people >= 10_000 else 400
            columns = 1 + len(COVARIATES) + len(COMPONENTS)
            rows[name]["formula"] = formula(found["facts"], block, columns)
    causal = reference["chi2"][np.loadtxt(folder / "causal.txt", int)]
    null = (np.arange(len(reference["chi2"])) // EACH) % 2 == 1
    rows["BOLT"] = {
        "lambda_null": float(np.median(reference["chi2"][null]) / HALF),
        "causal_chi2": float(causal.mean()),
        "power_5e-8": float((log10p(causal) > -np.log10(5e-8)).mean()), "cpu": reference["cpu"],
    }  # fmt: skip
    return rows


def _judged_once(folder: Path, trait: str, genome: bool) -> dict[str, Any]:
    """Inflation of null chromosomes, and how many are beyond 0.001, of how many; kept in a file, as
    the five studies take some minutes."""
    kept = folder / f"{trait}-{genome}.json"
    if not kept.exists():
        told = nulls(ours(folder, trait, genome))
        beyond = [int((log10p(told) > 3).sum()), len(told)]
        kept.write_text(json.dumps({"lambda": float(np.median(told) / HALF), "beyond": beyond}))
    found: dict[str, Any] = json.loads(kept.read_text())
    return found


def cases(folder: Path, draws: list[Draw]) -> dict[str, Any]:
    """Five studies: inflation of each, and false positives of all."""
    found: dict[str, Any] = {}
    for draw in draws:
        place = folder / f"b{draw.seed}"
        simulate(place, draw)
        add_cases(place)
        for trait in CASES:
            for name, genome in (("logistic + PC", False), ("whole genome + PC", True)):
                one = _judged_once(place, trait, genome)
                row = found.setdefault(trait, {}).setdefault(name, {"lambda": [], "beyond": []})
                for key, values in row.items():
                    values.append(one[key])
    for rows in found.values():
        for row in rows.values():
            row["mean_lambda"] = float(np.mean(row["lambda"]))
            wrong, of = np.sum(row["beyond"], axis=0).tolist()
            low, high = binom.interval(0.95, of, 1e-3)
            row["false_positives"] = {"share": wrong / of, "interval": [low / of, high / of]}
    return found


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--studies", default="mild;heavy;12,000", help="separated by ;")
    parser.add_argument("--bolt", default="bolt")
    parser.add_argument("--cases", type=int, default=len(BINARY), help="studies of binary traits")
    given = parser.parse_args()
    told: dict[str, Any] = {}
    for name in filter(None, given.studies.split(";")):
        folder = given.data / name.replace(",", "")
        simulate(folder, DRAWS[name])
        told[name] = quantitative(folder, given.bolt)
    if given.cases:
        told["binary"] = cases(given.data, BINARY[: given.cases])
    print(json.dumps(told, indent=1))


if __name__ == "__main__":
    main()
