"""The report of a plan that stands for several studies, such as one a trait: a line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cupola.base.formatting import count, number, size, text
from cupola.pages import page
from cupola.pages.folder import RunFolder

_HEAD = [("study", False), ("trait", False), ("people", True), ("variants", True),
         ("hits below 5e-8", True), ("smallest P", True), ("inflation", True),
         ("sent", True)]  # fmt: skip


def sections(runs: Sequence[RunFolder], where: Path) -> list[str]:
    """What studies of one plan came to, with links to their own reports."""
    failed = [run for run in runs if run.status == "failed"]
    said = [f"{run.label or run.name}: {run.result.get('reason') or 'failed'}" for run in failed]
    notes = "".join(f'<p class="alert">{text(line)}</p>' for line in said)
    note = (
        "Studies of the same people: their totals differ by those who have one trait and not "
        "another. With limits.least_cell, who is like too few others in all of them takes no part."
    )
    head = page.numbers([("Studies", number(len(runs)), count(len(runs) - len(failed), "result"))])
    rows = [_row(run, where) for run in runs]
    return [notes, head, page.table(_HEAD, rows), f'<p class="note">{text(note)}</p>']


def _row(run: RunFolder, where: Path) -> list[str]:
    r, trait = run.result, run.plan.get("trait") or {}
    place = run.path.resolve().relative_to(where.resolve()).as_posix()
    label = text(run.label or run.name)
    name = f'<a href="{text(place)}/report.html">{label}</a>'
    first = [name, text(str(trait.get("column") or "sixth column of .fam"))]
    if run.status != "finished":
        return [*first, run.status, *["–"] * 5]
    log10, inflation = r.get("smallest_log10_p"), r.get("inflation")
    return [
        *first,
        number(r["people"]["tested"]),
        number(r["tested"]),
        number(r["hits"]["5e-8"]),
        "–" if log10 is None else _power(float(log10)),
        "–" if inflation is None else f"{inflation:.3f}",
        size(r["bytes_down"] + r["bytes_up"]),
    ]


def _power(log10: float) -> str:
    """10^log10, which may be too small for a float."""
    whole = int(log10 // 1)
    return f"{10 ** (log10 - whole):.2g}e{whole}" if log10 < -3 else f"{10**log10:.2g}"
