"""Sections that the report of a run of any kind has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cupola.base.formatting import count, duration, finite, number, size, text
from cupola.pages import page
from cupola.pages.folder import RunFolder
from cupola.pages.traffic import ledger_section, traffic

#: Of result.json, what is no result of the analysis itself.
_COMMON = ("status", "reason", "name", "kind", "seed", "bytes_down", "bytes_up", "seconds",
           "cpu_seconds", "simulated", "checksums", "versions")  # fmt: skip
_SHOWN = 50  # numbers of a list


def sections(run: RunFolder) -> list[str]:
    """What can be said of any run."""
    return [
        trouble(run),
        headline(run),
        results(run),
        traffic(run),
        ledger_section(run),
        plan_section(run),
    ]


def trouble(run: RunFolder) -> str:
    if run.status == "unfinished":
        reached = f" after {count(run.rounds, 'round')}" if run.rounds else ""
        return (
            '<p class="alert">This run has not finished. What follows is its state'
            f"{text(reached)}; go on with <b>cupola resume</b>.</p>"
        )
    reason = run.result.get("reason")
    if not reason:
        return ""
    bad = " bad" if run.status == "failed" else ""
    return f'<p class="alert{bad}">{text(run.status.capitalize())}: {text(reason)}</p>'


def headline(run: RunFolder) -> str:
    down, up = run.totals.get("bytes_down"), run.totals.get("bytes_up")
    sent = f"{size(down)} to sites, {size(up)} from sites"
    return page.numbers(
        [("Bytes sent", size(run.bytes_sent), sent), ("Time", duration(run.seconds), "")]
    )


def results(run: RunFolder) -> str:
    """The analysis' own part of result.json, as a table."""
    rows = own_results(run.result)
    return page.section("Results", "", page.facts(rows)) if rows else ""


def own_results(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What result.json says beside what every run has, in words; a table row by row."""
    rows = []
    for key, value in result.items():
        if key not in _COMMON:
            table = value if isinstance(value, dict) and len(value) <= _SHOWN else {"": value}
            rows += [(f"{key} {inner}".strip(), _said(part)) for inner, part in table.items()]
    return rows


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_said(part)}" for key, part in value.items())
    if isinstance(value, list):
        more = ", ..." if len(value) > _SHOWN else ""
        return ", ".join(_said(part) for part in value[:_SHOWN]) + more
    return number(value) if finite(value) else str(value)


def plan_section(run: RunFolder) -> str:
    versions = run.result.get("versions")
    known = versions.items() if isinstance(versions, dict) else ()
    parts = [page.facts((str(k), str(v)) for k, v in known)] if versions else []
    if run.plan_text:
        parts.append(
            "<details><summary>The plan as executed</summary>"
            f"<pre>{text(run.plan_text)}</pre></details>"
        )
    lead = "Everything needed to run it again: the plan with every default, and what ran it."
    return page.section("Plan and versions", lead, *parts) if parts else ""
