"""Whether honest studies print the same digits as before: hashes of their tables.

    python benchmarks/gwas/digits.py --hm3 HM3.tar.xz --data FOLDER [--compare OTHER.json]

HapMap 3: three tests in six cuts; logistic with 14 covariates, with 5 % cases, both, with Firth's
fallback; made-up variants of 1 to 30 carriers. Masked sums, but for the last cuts. Prints JSON:
study -> hash of table and of the list of variants left out, iterations and megabytes. With
--compare it says which differ, and fails if any does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hapmap

import cupola

TESTS = {"chi-square": ".assoc", "linear": ".assoc.linear", "logistic": ".assoc.logistic"}


def studies(base: Path, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for cut in hapmap.CUTS:
        lists = hapmap.keeps(base, folder, cut)
        for test in TESTS:
            yield f"{test}, {cut}", hapmap.study(base, lists, test, 4, sum="masked")
    lists = hapmap.keeps(base, folder, "balanced")
    yield "logistic, 14 covariates", hapmap.study(base, lists, "logistic", 14)
    firth = {"firth": True}
    yield "logistic, Firth", hapmap.study(base, lists, "logistic", 4, newton=firth)
    lists = hapmap.keeps(base, folder, hapmap.FEW)
    for many in (4, 14):
        yield f"logistic, 5 % cases, {many}", hapmap.study(base, lists, "logistic", many)
    for share in (0.5, 0.05):
        own = hapmap.rare(folder, share)
        lists = hapmap.thirds(own, folder)
        for newton in ({}, firth):
            more = {"newton": newton, "ambiguous_sex": True, "sum": "masked"}
            name = f"rare variants, {share:g} cases{', Firth' if newton else ''}"
            yield name, hapmap.study(own, lists, "logistic", 2, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hm3", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--compare", type=Path)
    parser.add_argument("--only", default="", help="names that contain this")
    options = parser.parse_args()
    base, found = hapmap.unpack(options.hm3, options.data), {}
    for name, study in studies(base, options.data):
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            result = cupola.run(study, Path(folder) / "run", report=False).result
            files = [f"study{TESTS[study['test']]}", "study.dropped.tsv"]
            whole = b"".join((Path(folder) / "run" / file).read_bytes() for file in files)
        sent = (result["bytes_down"] + result["bytes_up"]) / 1e6
        found[name] = {
            "table": hashlib.sha256(whole).hexdigest()[:16],
            "tested": result["tested"],
            "megabytes": round(sent, 3),
            "seconds": result["seconds"],
        }
        print(name, found[name], file=sys.stderr, flush=True)
    print(json.dumps(found, indent=1))
    if options.compare:
        before = json.loads(options.compare.read_text())
        other = [n for n in found if found[n]["table"] != before.get(n, {}).get("table")]
        more = [found[n]["megabytes"] / before[n]["megabytes"] - 1 for n in found if n in before]
        print(f"{len(found)} studies; other digits: {other or 'none'}", file=sys.stderr)
        print(f"traffic: {min(more):+.2%} to {max(more):+.2%}", file=sys.stderr)
        sys.exit(bool(other))


if __name__ == "__main__":
    main()
