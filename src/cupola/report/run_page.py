"""The report of one run: what every run has in common, and the sections of its analysis."""

from __future__ import annotations

from typing import Any

from cupola.analysis.kinds import find_kind, kind_of
from cupola.analysis.protocol import Analysis
from cupola.pages import page
from cupola.pages.folder import RunFolder

_STATUS = {"finished": "good", "stopped": "good", "failed": "bad", "unfinished": "warn"}


def run_page(run: RunFolder, analysis: Analysis[Any] | None = None) -> str:
    """The whole document. analysis: of the run, if it is at hand."""
    analysis = analysis or analysis_in(run)
    real = f"real {analysis.noun}s"
    where = ("simulated", "warn") if run.result.get("simulated", True) else (real, "")
    chips = [(run.status, _STATUS.get(run.status, "")), where, *analysis.chips(run)]
    return page.page(run.name, analysis.title, page.chips(chips), analysis.sections(run))


def analysis_in(run: RunFolder) -> Analysis[Any]:
    """The analysis of a run; only its kind and its plan's text count here."""
    return find_kind(kind_of(run.plan)).of_report(run.plan)
