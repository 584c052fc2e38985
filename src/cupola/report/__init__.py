"""Reports: a run folder in, one self-contained HTML file out.

    report.write("runs/demo")                      # of a run, or of a folder of runs
    report.compare(["runs/a", "runs/b"], "a-b.html", target=0.9)
    report.table(["runs/a", "runs/b"], target=0.9)  # the same as rows

Charts are inline SVG: a report is some hundred kilobytes rather than the five megabytes an embedded
chart library costs each of a sweep's runs, follows light and dark, and prints.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cupola.report.any_run import page_of
from cupola.report.folder import RunFolder, find_runs, is_run, open_run
from cupola.report.groups import common_metric, easy_target, group
from cupola.report.many import many
from cupola.report.picture import overview_picture

if TYPE_CHECKING:
    from cupola.analysis.protocol import Analysis

__all__ = ["RunFolder", "compare", "find_runs", "open_run", "overview_picture", "table", "write"]


def write(folder: Path | str, analysis: Analysis[Any] | None = None) -> Path:
    """Make report.html in the folder of a run, or of runs; returns its path. analysis: of the run,
    if it is at hand."""
    folder = Path(folder)
    runs = find_runs(folder)
    if is_run(folder) and not (folder / "runs.json").is_file():
        html = page_of(runs[0], analysis)
    else:
        html = many(runs, folder.resolve().name, folder)
    return save(html, folder / "report.html")


def compare(
    folders: Sequence[Path | str],
    out: Path | str,
    target: float | None = None,
    name: str | None = None,
    extra: Sequence[str] = (),
    remark: str = "",
    crown: bool = True,
) -> Path:
    """One report over any runs or folders of runs.

    extra: sections as HTML, put first. crown: whether to point out the best setting.
    """
    out = Path(out)
    runs = _all(folders)
    return save(many(runs, name or "Comparison", out.parent, target, extra, remark, crown), out)


def table(folders: Sequence[Path | str], target: float | None = None) -> list[dict[str, Any]]:
    """A row per setting: metric with spread over seeds, bytes, seconds, cost to the target."""
    runs = _all(folders)
    groups, measured = group(runs), common_metric(runs)
    if target is None:
        target = easy_target(groups, measured)
    return [g.row(measured, target) for g in groups]


def _all(folders: Sequence[Path | str]) -> list[RunFolder]:
    found = {run.path.resolve(): run for folder in folders for run in find_runs(folder)}
    return list(found.values())


def save(html: str, path: Path) -> Path:
    """Write whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".report-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(html)
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path
