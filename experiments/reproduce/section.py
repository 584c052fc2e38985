"""The section of a reproduced table's report."""

from __future__ import annotations

from typing import Any

from cupola.base.formatting import count, text
from cupola.pages import page
from reproduce.outcome import difference_rows, grid_rows, parts_of


def table_section(results: dict[str, Any]) -> str:
    """Published beside measured, and the paired differences."""
    parts: list[str] = []
    for measured, part in parts_of(results):
        parts += [f"<h3>{text(measured)}</h3>"] if measured else []
        tables = [("", 0, grid_rows(part))]
        tables.append(("Paired differences (same seeds)", 1, difference_rows(part)))
        for name, words, (head, rows) in tables:
            if rows:
                parts += [f"<h3>{name}</h3>"] if name else []
                lines = [[text(c) for c in row] for row in rows]
                parts.append(page.table([(h, i > words) for i, h in enumerate(head)], lines))
    lead = f"{results['source']}. Measured over {count(len(results['seeds']), 'seed')}."
    if results.get("note"):
        lead += f" {results['note']}"
    return page.section("Published beside measured", lead, *parts)
