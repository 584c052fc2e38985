"""Damaged run folders: how many give another result silently, how many an unclear error?

    python benchmarks/damage/runs.py --folders 300 --out benchmarks/damage/runs.json

Each is a copy of a small run (training: plain, masked, with a privacy book, with sites in processes
of their own; studies: plain, masked; finished, or killed in the middle) with one damaged file. It
is read and reported as it is, and then resumed. Outcomes: 'identical' to the undamaged run (of one
whose result.json is gone, readers say that it is unfinished, and a resume ends it again); 'refused'
by an error that names a file of the folder and the way out; 'different'; 'unclear' (any other
exception).
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests" / "association")]

import numpy as np  # noqa: E402
from harm import harm, tell  # noqa: E402

import cupola  # noqa: E402
from cupola import report  # noqa: E402
from cupola.analysis.run_folder import held_plan  # noqa: E402
from cupola.base.chain import read_chain, read_result  # noqa: E402
from cupola.errors import CupolaError  # noqa: E402

SMALL: dict[str, Any] = {
    "name": "small",
    "rounds": 4,
    "data": {"name": "digits", "partition": {"kind": "iid", "sites": 3}},
    "model": "linear",
    "local": {"lr": 0.1, "batch_size": 64},
    "engine": {"workers": 1},
    "checkpoint_seconds": 0,
}
PLANS: dict[str, dict[str, Any]] = {
    "plain": SMALL | {"recipe": "scaffold"},
    "masked": SMALL | {"sum": "masked"},
    "private": SMALL | {"privacy": {"mechanism": "dp-sgd", "noise_multiplier": 1.0, "clip": 1.0}},
    "separate": SMALL
    | {"recipe": "scaffold", "rounds": 3, "engine": {"kind": "processes", "quorum": 1.0}},
}
TIMES = ("seconds", "cpu_seconds", "versions", "checksums")


@dataclass
class Base:
    """An undamaged run: finished, killed in the middle, at an earlier time, and one like it."""

    whole: Path
    half: Path
    early: Path
    other: Path


class Killed(BaseException):
    """kill -9, as far as the folder is concerned."""


def training(name: str, folder: Path) -> Base:
    plan = PLANS[name]

    def until(rounds: int) -> Callable[[Any], None]:
        def watch(progress: Any) -> None:
            if progress.round == rounds:
                raise Killed

        return watch

    for part, rounds in (("early", 1), ("half", 2), ("whole", 0), ("other", 0)):
        seed = {"seed": 9} if part == "other" else {}
        with suppress(Killed):
            cupola.run(plan | seed, folder / part, progress=until(rounds))
    return Base(*(folder / p for p in ("whole", "half", "early", "other")))


def study_plan(name: str, folder: Path) -> dict[str, Any]:
    """A small study, whose data are put into this folder."""
    from cohorts import cut, people, write_bim

    folder.mkdir(parents=True)
    made = people(41, n=150, m=40, chromosomes=(1, 23))
    cut(folder, made, np.array_split(np.arange(150), 3))
    write_bim(folder / "public.bim", made.variants)
    return {
        "name": "small", "test": "logistic", "trait": {"column": "CC"}, "covariates": ["AGE"],
        "sum": "masked" if name == "masked study" else "plain", "workers": 1, "chunk": 8,
        "variants": str(folder / "public.bim"), "checkpoint_seconds": 0, "people_per_column": 10,
        "cohorts": [
            {"name": c, "bfile": str(folder / c), "pheno": str(folder / f"{c}.pheno"),
             "cov": str(folder / f"{c}.cov")} for c in ("c0", "c1", "c2")
        ],
    }  # fmt: skip


def study(name: str, folder: Path) -> Base:
    def until(count: int) -> Callable[..., None]:
        seen: list[Any] = []

        def watch(*facts: Any) -> None:
            seen.append(facts)
            if len(seen) == count:
                raise Killed

        return watch

    plan = study_plan(name, folder / "data")
    for part, count in (("early", 2), ("half", 5), ("whole", 0), ("other", 0)):
        more = {"covariates": []} if part == "other" else {}
        with suppress(Killed):
            cupola.run(plan | more, folder / part, progress=until(count))
    return Base(*(folder / p for p in ("whole", "half", "early", "other")))


def content(folder: Path) -> dict[str, Any]:
    """What a run tells, without clocks."""
    found: dict[str, Any] = {"result": _timeless(read_result(folder, whole=True))}
    for name in ("history.jsonl", "ledger.jsonl"):
        if (folder / name).is_file():
            found[name] = [_timeless(line) for line in read_chain(folder / name)]
    for path in sorted(folder.glob("*.safetensors")) + sorted(folder.glob("study.*")):
        found[path.name] = path.read_bytes()
    found["plan"] = held_plan(folder)
    if found["plan"].kind == "training" and found["result"].get("status") == "finished":
        run = cupola.Run.open(folder)
        found["read"] = [_timeless(line) for line in run.history]
        found["model"] = {n: p.numpy().tobytes() for n, p in run.model().state_dict().items()}
    return found


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in TIMES}
    return [_timeless(v) for v in value] if isinstance(value, list) else value


def outcome(
    folder: Path, act: Callable[[], Any], expected: Any, killed: bool = False
) -> tuple[str, str]:
    """What acting on a damaged folder comes to, and in which words."""
    try:
        found = act()
    except CupolaError as error:
        text = str(error)
        clear = (folder.name in text and ";" in text) or "restore its newest copy" in text
        return ("refused" if clear else "unclear"), text.replace(str(folder), "FOLDER")
    except Exception as error:
        return "unclear", f"{type(error).__name__}: {error}".replace(str(folder), "FOLDER")
    if expected is None or found == expected:
        return "identical", ""
    keys = sorted(k for k in {*found, *expected} if found.get(k) != expected.get(k))
    lines = [k for k in keys if k.endswith(".jsonl")]
    if killed and lines == keys and all(_begins(found.get(k, []), expected[k]) for k in keys):
        return "identical", f"as of another moment: {keys}"
    if not found["result"] and expected["result"]:
        return "identical", "said to be unfinished"
    return "different", f"differs in {keys}"


def _begins(found: list[Any], expected: list[Any]) -> bool:
    """A killed run's lines end anywhere. Which are missing shows on resuming it."""
    both = min(len(found), len(expected))
    return found[:both] == expected[:both]


def trial(base: Base, state: str, seed: int, place: Path) -> dict[str, Any]:
    """Damage a copy; read, report and resume it."""
    folder = place / f"folder-{seed}"
    source = base.whole if state == "finished" else base.half
    shutil.copytree(source, folder)
    what = harm(folder, seed, base.early, base.other)
    as_is, whole = content(source), content(base.whole)

    def resumed() -> Any:
        cupola.resume(folder)
        return content(folder)

    def reported() -> None:
        report.write(folder)

    found = {
        "read": outcome(folder, lambda: content(folder), as_is, state == "killed"),
        "report": outcome(folder, reported, None),
        "resume": outcome(folder, resumed, whole),
    }
    shutil.rmtree(folder)
    order = ("different", "unclear", "refused", "identical")
    worst = min((kind for kind, _ in found.values()), key=order.index)
    return {"damage": what, "outcome": worst, **{name: list(f) for name, f in found.items()}}


def measure(folders: int, place: Path, names: list[str]) -> dict[str, Any]:
    bases: dict[str, Base] = {}
    for name in names:
        make = study if "study" in name else training
        bases[name] = make(name, place / name.replace(" ", "-"))
    trials = []
    for seed in range(folders):
        name = names[seed % len(names)]
        state = "finished" if seed // len(names) % 2 else "killed"
        found = trial(bases[name], state, seed, place)
        trials.append({"seed": seed, "run": name, "state": state, **found})
    return summary(trials, "run")


def summary(trials: list[dict[str, Any]], by: str) -> dict[str, Any]:
    """Counts, and every trial that came out wrong."""

    def counts(key: str, value: str) -> Counter[str]:
        return Counter(t["outcome"] for t in trials if t[key] == value)

    for one in trials:
        one["kind"] = one["damage"].split(":")[0]
    return {
        "folders": len(trials),
        "outcomes": Counter(t["outcome"] for t in trials),
        "by_run": {name: counts(by, name) for name in sorted({t[by] for t in trials})},
        "by_damage": {kind: counts("kind", kind) for kind in sorted({t["kind"] for t in trials})},
        "bad": [t for t in trials if t["outcome"] in ("different", "unclear")],
    }


NAMES = ["plain", "masked", "private", "study", "masked study"]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folders", type=int, default=300)
    parser.add_argument("--separate", type=int, default=10, help="of sites in their own processes")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        found = measure(given.folders - given.separate, Path(place), NAMES)
    if given.separate:
        with tempfile.TemporaryDirectory() as place:
            found["separate"] = measure(given.separate, Path(place), ["separate"])
    found["seconds"] = round(time.monotonic() - began)
    tell(found, given.out)


if __name__ == "__main__":
    main()
