"""The mixed model beside BOLT-LMM (`--lmmInfOnly`), on three simulated studies of three cohorts.

    python benchmarks/gwas/mixed.py --data FOLDER [--studies mild,heavy,12,000] [--bolt bolt]

Simulates (see families.py), runs BOLT on the pooled file and Cupola on the cohorts, and prints one
JSON document: agreement of -log10 p with BOLT, inflation of null chromosomes, mean chi-square of
causal variants, bytes of a cohort beside the formula (numbers of 64 bits), processor seconds of
both (ours: all parties). 'at BOLT's h2' is without components, as is BOLT; the others have ten
components, made by sums, and estimate heritability by sums.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import chi2

sys.path.insert(0, str(Path(__file__).resolve().parent))
from families import DRAWS, EACH, simulate

import cupola

COVARIATES, COMPONENTS = ("AGE", "MALE"), "PC1-10"
HALF = 0.4549364  # median of chi-square
LEAST = {"at BOLT's h2": 0.9999, "22 groups + PC": 0.985, "5 groups + PC": 0.97}


def bolt(binary: str, folder: Path, covariates: list[str]) -> dict[str, Any]:
    """Its table, heritability and processor seconds."""
    out = folder / f"bolt-{len(covariates)}"
    command = [
        binary, "--bfile", "all", "--phenoFile", "all.pheno", "--phenoCol", "QT", "--covarFile",
        "all.cov", "--lmmInfOnly", "--numThreads", "1", "--statsFile", f"{out.name}.stats",
    ]  # fmt: skip
    command += [text for name in covariates for text in ("--qCovarCol", name)]
    log = out.with_suffix(".log")
    facts = out.with_suffix(".json")
    if not facts.exists():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        log.write_text(done.stdout)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        facts.write_text(json.dumps({"cpu": cpu}))
    told = log.read_text()
    solved = r"Converged at iter (\d+): rNorms/orig all < CGtol=0.0005"
    (h2,) = re.findall(r"\(pseudo-\)heritability: h2g = ([0-9.]+)", told)
    rows = [line.split() for line in out.with_suffix(".stats").read_text().splitlines()]
    table = {name: np.array(column) for name, column in zip(rows[0], zip(*rows[1:]))}
    beta, error = table["BETA"].astype(float), table["SE"].astype(float)
    return {
        "h2": float(h2), "chi2": (beta / error) ** 2, "beta": beta, "error": error,
        "names": table["SNP"],
        "a1": table["ALLELE1"], **json.loads(facts.read_text()),
        "iterations": int(re.findall(solved, told)[-1]),
    }  # fmt: skip


def ours(
    folder: Path,
    name: str,
    test: str,
    covariates: list[str],
    **mixed: Any,
) -> dict[str, Any]:
    """A study of the three cohorts, which makes its components by itself."""
    components = {"count": 10} if COMPONENTS in covariates else None
    plan = {
        "kind": "association", "name": name, "test": test, "covariates": covariates,
        "trait": {"column": "QT"}, "folder": str(folder), "variants": "all.bim",
        "tables": ["parquet"],
        "cohorts": [{"name": c, "bfile": c, "pheno": f"{c}.pheno", "cov": f"{c}.cov"}
                    for c in ("c0", "c1", "c2")],
    }  # fmt: skip
    plan |= {"mixed": mixed} if mixed else {}
    plan |= {"components": components} if components else {}
    before, start = time.process_time(), time.perf_counter()
    run = cupola.run(plan, folder / f"out-{name}", report=False, overwrite=True)
    cpu = time.process_time() - before
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(run.folder / f"{name}.parquet").to_pydict()
    names = np.array(table["SNP"] if "SNP" in table else table["name"])
    found = {key: np.array(table[key], float) for key in ("BETA", "SE", "P")}
    entries = [json.loads(line) for line in (run.folder / "ledger.jsonl").read_text().splitlines()]
    return {
        "cpu": cpu, "wall": time.perf_counter() - start, "names": names, "beta": found["BETA"],
        "a1": np.array(table["A1"]), "chi2": (found["BETA"] / found["SE"]) ** 2,
        "error": found["SE"], "bytes": _bytes(entries), "mixed": run.result.get("mixed"),
    }  # fmt: skip


def _bytes(entries: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Down and up of one cohort, by task."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        if not entry["sites"]:
            continue
        up = entry["bytes_up"][0] if isinstance(entry["bytes_up"], list) else entry["bytes_up"]
        row = found.setdefault(entry["task"], [0, 0])
        row[0] += entry["bytes_down"]
        row[1] += up
    return found


def formula(markers: int, covariates: int, facts: dict[str, Any], tested: int) -> dict[str, int]:
    """structure.md's: numbers of 64 bits up, 22 groups and 30 markers of calibration say."""
    sums, systems = facts["sums"], facts["systems"]
    return {
        "cross": 8 * markers * (covariates + 1 + facts["probes"]),
        "residual, up": 8 * markers * systems * sums,
        "residual, down": 8 * markers * systems * sums,
        "test": 8 * tested * (covariates + 3),
    }


def log10p(statistic: np.ndarray) -> np.ndarray:
    return -chi2.logsf(statistic, 1) / np.log(10)


def judged(folder: Path, found: dict[str, Any], reference: dict[str, Any]) -> dict[str, float]:
    """Agreement with BOLT; what null chromosomes and causal variants say."""
    place = {name: i for i, name in enumerate(found["names"].tolist())}
    order = np.array([place[name] for name in reference["names"].tolist()])
    statistic = found["chi2"][order]
    ours, bolts = log10p(statistic), log10p(reference["chi2"])
    null = (np.arange(len(order)) // EACH) % 2 == 1
    causal = np.loadtxt(folder / "causal.txt", int)
    sign = np.where(found["a1"][order] == reference["a1"], 1, -1)
    beta, error = found["beta"][order] * sign, found["error"][order]
    return {
        "r": float(np.corrcoef(ours, bolts)[0, 1]),
        "largest_difference_below_5": float(np.abs(ours - bolts)[bolts < 5].max()),
        "lambda_null": float(np.median(statistic[null]) / HALF),
        "causal_chi2": float(statistic[causal].mean()),
        "power_5e-8": float((ours[causal] > -np.log10(5e-8)).mean()),
        "beta_over_bolts": float(
            beta @ reference["beta"] / (reference["beta"] @ reference["beta"])
        ),
        "error_over_bolts": float(np.median(error / reference["error"])),
    }


def compare(folder: Path, binary: str) -> dict[str, Any]:
    plain, components = list(COVARIATES), [*COVARIATES, COMPONENTS]
    reference = bolt(binary, folder, plain)
    h2 = reference["h2"]
    runs = {
        "linear": ours(folder, "linear", "linear", plain),
        "linear + PC": ours(folder, "linear-pc", "linear", components),
        "at BOLT's h2": ours(folder, "given", "mixed", plain, heritability=h2),
        "22 groups + PC": ours(folder, "22", "mixed", components),
        "5 groups + PC": ours(folder, "5", "mixed", components, groups=5),
    }
    itself = {"h2": h2, "cpu": reference["cpu"], "iterations": reference["iterations"]}
    found: dict[str, Any] = {"BOLT": {**itself, **judged(folder, reference, reference)}}
    for name, run in runs.items():
        found[name] = {**judged(folder, run, reference), "cpu": run["cpu"], "wall": run["wall"]}
        if run["mixed"]:
            facts = run["mixed"]
            found[name] |= {"mixed": facts, "bytes": run["bytes"]}
            p = 1 + len(plain) + 10 * ("PC" in name)
            found[name]["formula"] = formula(facts["markers"], p, facts, len(run["chi2"]))
    found["holds"] = holds(found)
    return found


def holds(found: dict[str, Any]) -> dict[str, bool]:
    """Whether a study shows what it should."""
    told = {f"r, {name}": found[name]["r"] >= least for name, least in LEAST.items()}
    if found["linear + PC"]["lambda_null"] >= 1.2:
        bolts = found["BOLT"]["lambda_null"]
        told |= {f"lambda, {n}": abs(found[n]["lambda_null"] - bolts) <= 0.06 for n in LEAST}
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--studies", nargs="+", default=list(DRAWS), choices=list(DRAWS))
    parser.add_argument("--bolt", default="bolt")
    options = parser.parse_args()
    if shutil.which(options.bolt) is None:
        raise SystemExit(f"{options.bolt} is not installed (Debian: bolt-lmm)")
    report = {}
    for name in options.studies:
        folder = options.data / name.replace(",", "")
        simulate(folder, DRAWS[name])
        report[name] = compare(folder, options.bolt)
        print(name, file=sys.stderr)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
