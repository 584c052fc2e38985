"""Six ways to cut people into three cohorts: the federated study and meta-analysis beside the
pooled people.

    python benchmarks/gwas/meta.py --data FOLDER [--hm3 HM3.tar.xz] [--people 4000]
        [--variants 15000] [--scenarios balanced,severe] [--sets hm3,simulated]

Logistic regression with four covariates; the reference is PLINK 1.9 on the pooled people of the
same three cohorts. Per scenario and tool: Pearson and Spearman r of -log10 p, and hits that are
true (the reference has them, too), false and missed, at 5e-8 and at Bonferroni. Needs plink1.9;
GWAMA is left out if it is not installed. Prints JSON on stdout, the documentation's table on
stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import peers
import simulate
import turns

import cupola
from cupola.association import Files
from cupola.association.compare import Table, compare_results, read_results
from cupola.association.split import by_cases, by_covariate, write_keeps

EFFECT = 0.45  # of a copy on the log-odds, at every 500th simulated variant
SHARES = {
    "balanced": (0.5, 0.5, 0.5),
    "slight": (0.6, 0.5, 0.4),
    "moderate": (0.75, 0.5, 0.25),
    "severe": (0.95, 0.5, 0.05),
    "unequal": (0.5, 0.5, 0.5),
}
SIZES = {"unequal": (0.7, 0.2, 0.1)}
HETEROGENEOUS = "heterogeneous"  # cohorts from low to high values of the set's covariate
SCENARIOS = (*SHARES, HETEROGENEOUS)
SETS = {
    "hm3": (("AGE", "SEX", "BMI", "SMOKE"), "BMI"),
    "simulated": (simulate.COVARIATES, "PACKYEARS"),
}


def cohorts(base: Path, scenario: str, covariate: str, folder: Path) -> list[Path]:
    """Lists of the cohorts' people."""
    parts = {end: base.with_suffix(f".{end}") for end in ("bed", "bim", "fam", "pheno", "cov")}
    files = Files("all", **parts)
    if scenario == HETEROGENEOUS:
        found = by_covariate(files, covariate, 3)
    else:
        found = by_cases(files, "CC", SHARES[scenario], SIZES.get(scenario))
    return write_keeps(found, folder, scenario)


def compare(base: Path, name: str, scenario: str, folder: Path) -> dict[str, Any]:
    """All tools in one scenario."""
    covariates, uneven = SETS[name]
    folder.mkdir(parents=True, exist_ok=True)
    keeps = cohorts(base, scenario, uneven, folder)
    everybody = folder / "all.keep"
    everybody.write_text("".join(keep.read_text() for keep in keeps))
    pooled = read_results(peers.plink(base, everybody, folder / "pooled", covariates))
    tables = [peers.plink(base, k, folder / f"c{i}", covariates) for i, k in enumerate(keeps)]
    found = {"Cupola, masked": ours(base, keeps, covariates, folder)}
    found |= peers.plink_meta(tables, folder)
    if peers.GWAMA:
        found |= peers.gwama(tables, base, folder)
    tools = {tool: judged(table, pooled) for tool, table in found.items()}
    sizes = [len(keep.read_text().splitlines()) for keep in keeps]
    return {"set": name, "scenario": scenario, "people": sizes, "tools": tools}


def ours(base: Path, keeps: list[Path], covariates: tuple[str, ...], folder: Path) -> Table:
    files = {"bfile": str(base), "pheno": f"{base}.pheno", "cov": f"{base}.cov"}
    study = {
        "test": "logistic", "trait": {"column": "CC"}, "covariates": list(covariates),
        "variants": f"{base}.bim", "sum": "masked", "ambiguous_sex": True, "workers": 1,
        "cohorts": [{"name": str(i), "keep": str(k), **files} for i, k in enumerate(keeps)],
    }  # fmt: skip
    cupola.run(study, folder / "ours", report=False, overwrite=True)
    return read_results(folder / "ours" / "study.assoc.logistic")


def judged(table: Table, pooled: Table) -> dict[str, Any]:
    facts = compare_results(table, pooled)
    hits = {
        level: {"true": h["both"], "false": len(h["gained"]), "missed": len(h["lost"])}
        for level, h in facts["hits"].items()
    }
    kept = ("compared", "na_only_first", "na_only_reference", "pearson", "spearman")
    return {**{key: facts[key] for key in kept}, "hits": hits}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: r, then true/false/missed hits."""
    tools = list(dict.fromkeys(tool for row in rows for tool in row["tools"]))
    lines = ["| set, scenario | | " + " | ".join(tools) + " |", "| --- " * (len(tools) + 2) + "|"]
    for row in rows:
        told = [row["tools"].get(tool) for tool in tools]
        for i, (label, cell) in enumerate(_CELLS.items()):
            first = f"{row['set']}, {row['scenario']}" if i == 0 else ""
            cells = " | ".join("–" if t is None else cell(t) for t in told)
            lines.append(f"| {first} | {label} | {cells} |")
    return "\n".join(lines)


def _hits(level: str) -> Any:
    return lambda t: "{true} / {false} / {missed}".format(**t["hits"][level])


_CELLS = {
    "Pearson": lambda t: f"{t['pearson']:.4f}",
    "Spearman": lambda t: f"{t['spearman']:.4f}",
    "5e-8": _hits("5e-8"),
    "Bonferroni": _hits("bonferroni"),
}


def prepared(name: str, options: argparse.Namespace) -> Path:
    """The files of a set of people, without their endings."""
    if name == "hm3":
        with tarfile.open(options.hm3) as archive:
            archive.extractall(options.data, filter="data")
        return options.data / "hm3" / "hm3"
    place = options.data / "simulated"
    simulate.simulate(place, options.people, options.variants, effect=EFFECT)
    return place / "all"


def main() -> None:
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--data", type=lambda text: Path(text).resolve(), required=True)
    parser.add_argument("--hm3", type=Path)
    parser.add_argument("--people", type=int, default=4000)
    parser.add_argument("--variants", type=int, default=15_000)
    parser.add_argument("--scenarios", type=lambda text: text.split(","), default=SCENARIOS)
    parser.add_argument("--sets", type=lambda text: text.split(","), default=list(SETS))
    options = parser.parse_args()
    if peers.PLINK is None:
        raise SystemExit("needs plink1.9 (apt-get install plink1.9)")
    rows = []
    for name in options.sets:
        if name == "hm3" and options.hm3 is None:
            continue
        base = prepared(name, options)
        for scenario in options.scenarios:
            rows.append(compare(base, name, scenario, options.data / f"{name}-{scenario}"))
            turns.say(f"  {rows[-1]}")
    turns.say(table(rows))
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
