"""What a plan will ask, send and reveal, as HTML: the facts of `Analysis.check`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from cupola.base.formatting import count, size, text, times
from cupola.pages import page


def sections(facts: Mapping[str, Any]) -> list[str]:
    """Of any analysis."""
    sent = facts["bytes"]
    most = ", at most" if sent["at_most"] else ""
    remark = "; ".join([count(facts["sites"], "site"), *sent["at_most"]])
    return [
        page.numbers([(f"Sent in all{most}", size(sent["total"]), remark)]),
        task_table(sent["rows"]),
        party_table(facts["parties"]),
    ]


def task_table(rows: Iterable[Mapping[str, Any]]) -> str:
    """What each task sends, over all sites."""
    head = [("question", False), ("asked", True), ("to sites", True), ("from sites", True)]
    cells = [(text(r["task"]), times(r["questions"]), size(r["down"]), size(r["up"])) for r in rows]
    return page.table(head, cells, stacked=True)


def party_table(parties: Iterable[Mapping[str, str]]) -> str:
    rows = [(text(row["party"]), text(row["learns"])) for row in parties]
    table = page.table([("party", False), ("learns", False)], rows, stacked=True)
    return page.figure("Who learns what", table)


def alert(said: str) -> str:
    return f'<p class="alert">{text(said)}</p>'
