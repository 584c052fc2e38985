"""Files and names that pages speak of exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "cupola"
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
#: `file.py`, `folder/file.py: name`, `python folder/file.py --option`
_FILE = re.compile(r"`(?:python )?([\w./-]+\.py)(?:: ([\w.]+))?[^`]*`")


@cache
def defined(path: Path) -> frozenset[str]:
    """What a file defines at its top level."""
    found: set[str] = set()
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found.update(t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return frozenset(found)


def places_of(name: str) -> list[Path]:
    """Files by their path in the repository or the package, or by their name alone."""
    found = [path for path in (ROOT / name, PACKAGE / name) if path.is_file()]
    if "/" not in name:
        found += [path for top in ("tests", "src") for path in (ROOT / top).rglob(name)]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_what_is_in_them_exist(page: Path) -> None:
    for file, name in _FILE.findall(page.read_text("utf-8")):
        places = places_of(file)
        assert places, f"{page.name}: {file}"
        known = any(name in defined(path) for path in places)
        assert known or not name, f"{page.name}: {file}: {name}"


def test_the_tour_names_many() -> None:
    found = _FILE.findall((ROOT / "docs" / "tour.md").read_text("utf-8"))
    assert len([name for _, name in found if name]) > 60


def test_the_picture_of_layers_is_that_of_the_test() -> None:
    rows = ast.literal_eval(_layers())
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    picture = page.split("## Layers")[1].split("```")[1].strip().splitlines()
    shown = [set(line.split("  ")[0].split(" · ")) for line in picture]
    assert shown[::-1] == list(rows)


def _layers() -> str:
    tree = ast.parse((ROOT / "tests" / "test_layers.py").read_text("utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LAYERS"
    )
    return ast.unparse(value)
