"""How much of Cupola a reader meets: functions and files of one round, import chains, file names.

    python benchmarks/walk/run.py             # prints JSON

A round is `cupola run` of a tiny plan, from the command line to the report, in this process: every
Python function of the package that is entered, once all files are loaded. `outside` leaves out what
`drive` (or `driven`) calls. Functions are those with a name, which a reader looks up; `frames`
counts lambdas and comprehensions too, each of which has a frame of its own in Python 3.11.

Chains are of imports at the top of files: how many files deep the deepest one is. What a package
passes on counts for the package; a module imported from its package counts for itself alone.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path
from types import FrameType
from typing import Any

import cupola

PACKAGE = Path(cupola.__file__).parent
PLAN = """name = "walk"
rounds = 1
{more}
[data]
name = "digits"
partition = {{ kind = "iid", sites = 4, samples_per_site = 20 }}
[model]
name = "mlp"
hidden = [8]
[engine]
workers = 1
"""
PRIVATE = 'recipe = "dp-sgd"\nsum = "masked"\nprivacy = { noise_multiplier = 1.0 }'


class Walk:
    """Functions of the package that are entered, in all and outside `drive`, by file and name."""

    def __init__(self) -> None:
        self.all: set[tuple[str, str]] = set()
        self.outside: set[tuple[str, str]] = set()
        self._driving = 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)) or code.co_name == "<module>":
            return
        drives = code.co_name in ("drive", "driven")  # a generator is entered for every step
        if event == "call":
            entered = (code.co_filename, code.co_qualname)
            self.all.add(entered)
            if not self._driving:
                self.outside.add(entered)
            self._driving += drives
        elif event == "return":
            self._driving -= drives

    def facts(self) -> dict[str, int]:
        return {
            "functions": len(_named(self.all)),
            "functions outside drive": len(_named(self.outside)),
            "frames": len(self.all),
            "frames outside drive": len(self.outside),
            "files": len({file for file, _ in self.all}),
        }


def _named(entered: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without lambdas and comprehensions, whose names are '<lambda>', '<listcomp>' and the like."""
    return {(file, name) for file, name in entered if not name.endswith(">")}


def walk(more: str) -> dict[str, int]:
    """One round of a plan, from the command line to the report."""
    from typer.testing import CliRunner

    from cupola.cli import app

    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.toml"
        plan.write_text(PLAN.format(more=more))
        for number in range(2):  # the first loads files
            walked = Walk()
            sys.setprofile(walked)
            try:
                done = CliRunner().invoke(app, ["run", str(plan), "--out", f"{folder}/{number}"])
            finally:
                sys.setprofile(None)
            if done.exit_code:
                raise SystemExit(done.output)
    return walked.facts()


def imports() -> dict[str, set[str]]:
    """Module -> modules of the package that it imports at its top."""
    files = {_name(path): path for path in PACKAGE.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        found[name] = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                inner = (f"{node.module}.{alias.name}" for alias in node.names)
                found[name] |= {n if n in files else node.module for n in inner} & files.keys()
            elif isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names if alias.name in files}
        found[name].discard(name)
    return found


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def deepest(graph: dict[str, set[str]]) -> list[str]:
    """The longest chain of imports."""
    chains: dict[str, list[str]] = {}
    for name in TopologicalSorter(graph).static_order():  # refuses a circle
        below = sorted(graph[name])
        chains[name] = [name, *max((chains[n] for n in below), key=len, default=[])]
    return max((chains[name] for name in sorted(chains)), key=len)


def main() -> None:
    names = Counter(path.name for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    lines = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    packages: Counter[str] = Counter()
    for path, count in lines.items():
        inner = path.relative_to(PACKAGE).parts
        packages[inner[0] if len(inner) > 1 else "."] += count
    chain = deepest(imports())
    found = {
        "one round": walk(""),
        "one masked private round": walk(PRIVATE),
        "longest import chain": len(chain),
        "chain": chain,
        "file names used more than twice": {n: c for n, c in names.items() if c > 2},
        "file names used twice": sorted(n for n, c in names.items() if c == 2),
        "files over 450 lines": {p.name: n for p, n in lines.items() if n > 450},
        "lines": {"all": sum(lines.values()), **dict(sorted(packages.items()))},
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
