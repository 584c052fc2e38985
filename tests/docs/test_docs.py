"""The documentation is true: generated parts are up to date, links resolve, examples work."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import typer

from cupola.analysis.plan_file import load
from cupola.training.meanings import meanings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "benchmarks").glob("*/README.md")),
]
_FENCE = re.compile(r"^```(\w*)[ ]?(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(language: str) -> list[Any]:
    """Code blocks of a language: (what follows the language, text)."""
    return [
        pytest.param(note, text, id=f"{page.relative_to(ROOT)}-{i}")
        for page in PAGES
        for i, (found, note, text) in enumerate(_FENCE.findall(page.read_text("utf-8")))
        if found == language
    ]


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@each_page
def test_generated_parts_are_up_to_date(generator: ModuleType, page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.count("<!-- generated:") == text.count("<!-- end -->")
    assert generator.rendered(text) == text, "run `python docs/generate.py`"


def test_nothing_is_explained_that_does_not_exist(generator: ModuleType) -> None:
    shown = "".join(page.read_text("utf-8") for page in generator.pages())
    told = meanings()
    for section, keys in told.items():
        for key in keys if section != "api" else [n for names in keys.values() for n in names]:
            assert f"| `{key}` |" in shown, f"meanings.toml: {section}.{key} is no longer there"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text("utf-8"))
    for link in _LINK.findall(text):
        if link.startswith(("https://", "http://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in _anchors(target), f"{page.name}: {link}"


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    titles = (re.sub(r"[`*]", "", t) for t in re.findall(r"^#+ (.*)$", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", t.strip().lower()).replace(" ", "-") for t in titles}


@pytest.mark.parametrize(("note", "text"), blocks("toml"))
def test_toml_blocks_are_plans_or_tables(note: str, text: str, tmp_path: Path) -> None:
    if note == "table":
        from reproduce.tables import read

        (tmp_path / "table.toml").write_text(text, "utf-8")
        assert read(tmp_path / "table.toml").cells()
    elif note == "study":
        from cupola.association.plan import StudyPlan

        assert load(text, elsewhere="bfile" not in text, of=StudyPlan).cohorts
    elif note in ("federation", "site"):
        from cupola.engines.flare.federation_settings import FederationSettings
        from cupola.site import SiteSettings

        kind = FederationSettings if note == "federation" else SiteSettings
        assert kind.model_validate(tomllib.loads(text)).name
    else:
        load(text)


@pytest.mark.parametrize("name", ["pieces", "python"])
def test_blocks_that_say_so_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, as somebody would who reads the page."""
    pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    found = _FENCE.findall((ROOT / "docs" / f"{name}.md").read_text("utf-8"))
    known: dict[str, Any] = {"__name__": "page"}
    ran = [exec(compile(text, name, "exec"), known) for _, note, text in found if note == "run"]
    assert ran


@pytest.mark.parametrize(("note", "text"), blocks("python"))
def test_python_blocks_compile(note: str, text: str) -> None:  # noqa: ARG001
    compile(text, "documentation", "exec")


def test_the_readmes_example_runs(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    readme = (ROOT / "README.md").read_text("utf-8")
    example = next(text for language, _, text in _FENCE.findall(readme) if language == "python")
    exec(compile(example.replace('"rounds": 20', '"rounds": 2'), "README.md", "exec"), {})
    assert 0 <= float(capsys.readouterr().out) <= 1


def test_the_readme_has_the_two_commands() -> None:
    shown = [t.strip() for _, _, t in _FENCE.findall((ROOT / "README.md").read_text("utf-8"))]
    assert "pip install -e . && cupola demo" in shown
    assert "pip install -e '.[dev]' && pytest" in shown


@pytest.mark.parametrize(("note", "text"), blocks("sh"))
def test_commands_exist(note: str, text: str) -> None:  # noqa: ARG001
    """Every `cupola ...` line names a command and options that it has."""
    from cupola.cli import app

    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["python"]:
            assert (ROOT / words[1]).is_file(), line
        if words[:1] != ["cupola"]:
            continue
        command: Any = typer.main.get_command(app)
        for word in words[1:]:
            if word in getattr(command, "commands", {}):
                command = command.commands[word]
        known = {"--help", *(o for p in command.params for o in (*p.opts, *p.secondary_opts))}
        assert command.name != "cupola", line
        assert {w for w in words if w.startswith("--")} <= known, line


def test_tests_that_pages_name_exist() -> None:
    tests = "\n".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    known = set(re.findall(r"def (test_\w+)\(", tests))
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"`(test_\w+)`", page.read_text("utf-8"))) - {"test_per_site"}
        assert named <= known, (page.name, named - known)


@pytest.mark.usefixtures("generator")
def test_the_suitability_table() -> None:
    from parts.suitability import suitability

    before = torch.get_rng_state()
    rows = {row.name: row for row in suitability()}
    assert torch.equal(before, torch.get_rng_state())
    usable = ["Linear", "Conv2d", "GroupNorm", "InstanceNorm2d", "LSTM", "MultiheadAttention"]
    usable += ["BatchNorm2d, frozen", "cross-entropy", "focal", "log", "squared error"]
    for name in usable:
        assert rows[name].usable, name
    mixing = ["BatchNorm1d", "SyncBatchNorm", "MultiheadAttention, batch second"]
    mixing += ["supervised contrastive", "triplet, hardest in the batch"]
    mixing += ["cross-entropy weighted by the batch's class frequencies"]
    for name in mixing:
        assert not rows[name].batch_independent, name
        assert rows[name].deterministic, name
    for name in ("Dropout", "RReLU", "LSTM, dropout .1", "TransformerEncoderLayer, dropout .1"):
        assert rows[name].batch_independent, name
        assert not rows[name].deterministic, name
