"""Looking at somebody else's folder runs none of the code that it names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import Result
from folders import make_run
from typer.testing import CliRunner

from cupola import report
from cupola.cli import app

_MODULE = """
from pathlib import Path
from cupola.analysis import Analysis

Path("imported").touch()

class Kind(Analysis):
    kind = "planted:Kind"

    def sections(self, run):
        return ["<p>a section of its own</p>"]
"""


@pytest.fixture(autouse=True)
def _planted(tmp_path, monkeypatch):
    """A module that leaves a mark where it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("planted.py").write_text(_MODULE)
    yield
    sys.modules.pop("planted", None)


def _cupola(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def _folder(**plan: object) -> Path:
    folder = make_run(Path("run"))
    lines = "".join(f"{key} = {str(value)!r}\n" for key, value in plan.items())
    (folder / "plan.toml").write_text(f'name = "foreign"\nrounds = 2\n{lines}')
    return folder


def test_a_foreign_analysis_is_reported_without_its_code() -> None:
    html = report.write(_folder(kind="planted:Kind")).read_text()
    assert "planted:Kind, whose code was not imported" in html
    assert "What was sent" in html or "Bytes sent" in html
    assert not Path("imported").exists()


def test_with_trust_it_has_its_own_sections() -> None:
    result = _cupola("report", str(_folder(kind="planted:Kind")), "--trust")
    assert result.exit_code == 0
    assert "a section of its own" in Path("run/report.html").read_text()
    assert Path("imported").exists()


@pytest.mark.parametrize("key", ["recipe", "task", "model", "data", "loss"])
def test_no_command_that_looks_imports_what_a_plan_names(key: str) -> None:
    folder = str(_folder(**{key: "planted:Kind"}))
    assert _cupola("report", folder).exit_code == 0
    assert _cupola("compare", folder, "--out", "both.html").exit_code == 0
    assert _cupola("export", folder, "--csv", "all.csv").exit_code == 0
    assert not Path("imported").exists()


def test_a_folder_does_not_bring_the_tool_that_draws_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a checkout, `reproduce` would be looked for in the current folder: the sender's, if
    somebody went there to look."""
    monkeypatch.setattr("cupola.__file__", str(Path("site-packages/cupola/__init__.py").absolute()))
    for name in [name for name in sys.modules if name.partition(".")[0] == "reproduce"]:
        monkeypatch.delitem(sys.modules, name)
    Path("reproduce").mkdir()
    for name in ("__init__", "tables", "run"):
        Path(f"reproduce/{name}.py").write_text('open("imported", "w")\n')
    Path("results.json").write_text("{}")
    result = _cupola("report", ".")
    assert result.exit_code == 2
    assert not Path("imported").exists()
