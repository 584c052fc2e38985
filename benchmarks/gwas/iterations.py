"""How many Newton iterations variants need that converge at all, by kind of study.

    python benchmarks/gwas/iterations.py --hm3 HM3.tar.xz --data FOLDER [--out iterations.json]

Logistic regression with room for 60 iterations. Per study: variants with an estimate by the
iteration they needed, the one with the shared weights included; how often variants without one
were asked about; the same of Firth's fallback. HapMap 3 (balanced, 5 % cases; 2, 4, 10, 14
covariates), and made-up variants of 1 to 30 carriers with 50 %, 5 % and 0.4 % cases, and of 2 to
30 carriers of whom some are cases, by design, down to 0.1 % cases: the longest ways.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
import hapmap

from cupola.analysis.plan_file import load
from cupola.association import fit
from cupola.association.analysis import AssociationAnalysis
from cupola.association.plan import StudyPlan
from cupola.engines import InProcess
from cupola.federation import drive

MOST = 60


def studies(base: Path, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    newton = {"iterations": MOST, "firth": True}
    for cut in ("balanced", hapmap.FEW):
        lists = hapmap.keeps(base, folder, cut)
        for many in (2, 4, 10, 14):
            made = hapmap.study(base, lists, "logistic", many, newton=newton)
            yield f"hm3, {cut}, {many} covariates", made
    for share in (0.5, 0.05, 0.004):
        own = hapmap.rare(folder, share)
        more = {"newton": newton, "ambiguous_sex": True}
        made = hapmap.study(own, hapmap.thirds(own, folder), "logistic", 2, **more)
        yield f"1 to 30 carriers, {share:.1%} cases", made
    for share, people in ((0.05, 3000), (0.01, 6000), (0.001, 40_000)):
        own = hapmap.rare(folder, share, people, variants=290, mixed=True)
        made = hapmap.study(own, hapmap.thirds(own, folder), "logistic", 2, **more)
        yield f"2 to 30 carriers, some of them cases, {share:.1%} cases", made


def needed(given: dict[str, Any]) -> dict[str, Any]:
    """Questions about each variant, by how it ended."""
    analysis = AssociationAnalysis(load(given, of=StudyPlan))
    host = analysis.host()
    program = analysis.program(host)
    asked: dict[str, np.ndarray] = {}
    reach = InProcess(host, workers=1, quorum=1.0)
    plain = reach.sum

    def counting(question: Any, sites: Any) -> Any:
        kind = question.task.removeprefix("gwas ")
        if kind in ("first", "newton", "firth"):
            bits = np.unpackbits(question.arrays["variants"]).astype(bool)
            index = question.options["start"] + np.flatnonzero(bits)
            asked.setdefault(kind, np.zeros(count, int))[index] += 1
        return plain(question, sites)

    count = len(program.listed)
    reach.sum = counting
    with reach:
        state = drive(program, reach)
    status = np.full(count, 255)
    for i, chunk in enumerate(program.chunks(state)):
        status[chunk.index] = state.arrays[f"test/{i}"][:, 1]
    firth = asked.get("firth", np.zeros(count, int))
    newton = asked["first"] + asked.get("newton", 0) - firth  # Firth asks for both
    return {
        "estimate": _histogram(newton[status == fit.OK]),
        "no estimate": _histogram(newton[np.isin(status, (fit.SEPARATED, fit.FIRTH))]),
        "withheld": int((status == fit.WITHHELD).sum()),
        "Firth's estimate": _histogram(firth[status == fit.FIRTH]),
    }


def _histogram(values: np.ndarray) -> dict[str, int]:
    found, counts = np.unique(values, return_counts=True)
    return {str(v): int(n) for v, n in zip(found, counts)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hm3", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    base, found = hapmap.unpack(options.hm3, options.data), {}
    for name, study in studies(base, options.data):
        found[name] = needed(study)
        most = {kind: max(map(int, told), default=0) if isinstance(told, dict) else told
                for kind, told in found[name].items()}  # fmt: skip
        print(f"{name}: at most {most}", file=sys.stderr, flush=True)
    text = json.dumps(found, indent=1) + "\n"
    options.out.write_text(text) if options.out else print(text)


if __name__ == "__main__":
    main()
