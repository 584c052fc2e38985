"""Engines stand above the federation, which knows none of them."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cupola

PACKAGE = Path(cupola.__file__).parent
BELOW = {
    "base": set(),
    "federation": {"base"},
    "engines": {"base", "federation", "secure"},
}


def imported(path: Path) -> set[str]:
    """Packages of Cupola that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        found |= {name.split(".")[1] for name in names if name.startswith("cupola.")}
    return found - {"errors"}


@pytest.mark.parametrize("layer", BELOW)
def test_a_layer_imports_from_those_below_it(layer):
    for path in (PACKAGE / layer).rglob("*.py"):
        allowed = BELOW[layer] | {layer}
        if path.name == "controller.py":
            allowed.add("flare")  # it drives a plan's run, which joins this engine with plans
        assert imported(path) <= allowed, path
