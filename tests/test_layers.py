"""Each layer imports only from those below it: read from the imports, wherever in a file they are.

What only type checkers read does not count. `ABOVE` lists the exceptions, each with its reason.
"""

from __future__ import annotations

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

import cupola

PACKAGE = Path(cupola.__file__).parent
#: From the ground up; what stands in one row may import from each other.
LAYERS = (
    {"errors"},
    {"base"},
    {"federation"},
    {"privacy", "secure", "nn", "data", "pages"},
    {"engines"},
    {"analysis"},
    {"training", "association"},
    {"report", "audit", "sweep"},
    {"site"},
    {"testing", "cli", "web"},
)
#: File -> what it imports from above.
ABOVE = {
    "analysis/session.py": {"report"},  # a finished run gets its page
    "engines/flare/controller.py": {"site"},  # FLARE makes it; it drives a plan's run
}
HEIGHT = {name: height for height, row in enumerate(LAYERS) for name in row}


def imports(path: Path) -> Iterator[str]:
    """Packages of Cupola that a file imports."""
    tree = ast.parse(path.read_text())
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module == "cupola":
            yield from (alias.name for alias in node.names if alias.name in HEIGHT)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cupola."):
            yield (node.module or "").split(".")[1]
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names if alias.name.startswith("cupola."))
            yield from (name.split(".")[1] for name in names)


FILES = [path for path in sorted(PACKAGE.rglob("*.py")) if path.parent != PACKAGE]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_layer_imports_from_those_below_it(path: Path) -> None:
    name = str(path.relative_to(PACKAGE))
    layer = path.relative_to(PACKAGE).parts[0]
    above = {found for found in imports(path) if HEIGHT[found] > HEIGHT[layer]}
    assert above == ABOVE.get(name, set())


def test_exceptions_are_of_files_that_exist() -> None:
    assert all((PACKAGE / name).is_file() for name in ABOVE)


def test_chains_of_imports_are_short() -> None:
    walk = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks/walk/run.py"))
    chain = walk["deepest"](walk["imports"]())  # which refuses circles
    assert len(chain) <= 15, " -> ".join(chain)
