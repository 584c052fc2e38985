"""Reports: a run folder in, one self-contained HTML file out.

    report.write("runs/demo")                      # of a run, or of a folder of runs
    report.compare(["runs/a", "runs/b"], "a-b.html", target=0.9)
    report.table(["runs/a", "runs/b"], target=0.9)  # the same as rows

Charts are inline SVG: a report is some hundred kilobytes rather than the five megabytes an embedded
chart library costs each of a sweep's runs, follows light and dark, and prints.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupola.analysis.kinds import find_kind, kind_of
from cupola.analysis.protocol import Analysis
from cupola.base.files import write_atomically
from cupola.base.formatting import text
from cupola.base.importing import trusting
from cupola.pages import page
from cupola.pages.folder import RunFolder, find_runs, is_run, open_run
from cupola.report.groups import common_metric, easy_target, group
from cupola.report.picture import overview_picture

__all__ = ["RunFolder", "compare", "find_runs", "open_run", "overview_picture", "table", "write"]

_STATUS = {"finished": "good", "stopped": "good", "failed": "bad", "unfinished": "warn"}


def write(
    folder: Path | str, analysis: Analysis[Any] | None = None, *, trust: bool = False
) -> Path:
    """Make report.html in the folder of a run, or of runs; returns its path.

    analysis: of the run, if it is at hand. trust: whether an analysis of somebody's own may be
    imported, as the plan in the folder names it; without, its run gets the sections of any run.
    """
    folder = Path(folder)
    runs = find_runs(folder)
    if is_run(folder) and not (folder / "runs.json").is_file():
        with trusting(trust):
            html = _run_page(runs[0], analysis or _analysis_in(runs[0], trust))
    else:
        html = _page_of_runs(runs, folder, trust)
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
    from cupola.report.compare_page import compare_page  # which loads torch

    html = compare_page(runs, name or "Comparison", out.parent, target, extra, remark, crown)
    return save(html, out)


def table(folders: Sequence[Path | str], target: float | None = None) -> list[dict[str, Any]]:
    """A row per setting: metric with spread over seeds, bytes, seconds, cost to the target.

    >>> import cupola
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> plan = {"name": "tiny", "rounds": 1, "data": data, "model": "linear"}
    >>> for recipe in ("fedavg", "scaffold"):
    ...     _ = cupola.run({**plan, "recipe": recipe}, f"runs/{recipe}")
    >>> [(row["label"], row["bytes"]) for row in table(["runs/fedavg", "runs/scaffold"])]
    [('fedavg', 22628.0), ('scaffold', 44412.0)]
    """
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
    write_atomically(path, html)
    return path


def _run_page(run: RunFolder, analysis: Analysis[Any]) -> str:
    """The report of one run: what every run has in common, and the sections of its analysis."""
    real = f"real {analysis.noun}s"
    where = ("simulated", "warn") if run.result.get("simulated", True) else (real, "")
    chips = [(run.status, _STATUS.get(run.status, "")), where, *analysis.chips(run)]
    return page.page(run.name, analysis.title, page.chips(chips), analysis.sections(run))


def _page_of_runs(runs: Sequence[RunFolder], folder: Path, trust: bool) -> str:
    """The report of several runs: as their analysis has it, or a comparison."""
    name, sections = folder.resolve().name, None
    if len({kind_of(run.plan) for run in runs}) == 1:
        with trusting(trust):
            analysis = _analysis_in(runs[0], trust)
            sections = analysis.sections_of_runs(runs, folder)
    if sections is None:
        from cupola.report.compare_page import compare_page  # which loads torch

        return compare_page(runs, name, folder)
    done = sum(run.status in ("finished", "stopped") for run in runs)
    state = "good" if done == len(runs) else "warn"
    chips = page.chips([(f"{done} of {len(runs)} finished", state)])
    return page.page(name, analysis.title, chips, sections)


def _analysis_in(run: RunFolder, trust: bool) -> Analysis[Any]:
    """The analysis of a run; only its kind and its plan's text count here."""
    kind = kind_of(run.plan)
    if ":" in kind and not trust:
        return _Unknown.of_report(run.plan)
    return find_kind(kind).of_report(run.plan)


class _Unknown(Analysis[Any]):
    """An analysis whose code is not imported: its runs have what any run has."""

    kind = "unknown"

    def sections(self, run: RunFolder) -> list[str]:
        note = (
            f'<p class="alert">The analysis is {text(kind_of(run.plan))}, whose code was not '
            "imported; if you trust it, <b>cupola report --trust</b> adds its own sections.</p>"
        )
        return [note, *super().sections(run)]
