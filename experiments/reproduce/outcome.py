"""What a reproduction came to: means, spreads, paired differences; as rows, Markdown, JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from cupola.base.formatting import finite, mean_spread, title
from reproduce.measure import WORDS
from reproduce.tables import Table

Values = dict[tuple[str, str], dict[int, float | None]]  # (row, column) -> seed -> value


def results(table: Table, values: dict[str, Values], seeds: Sequence[int]) -> dict[str, Any]:
    """Everything that results.json holds. values: by measure."""
    parts = [_part(table, what, values.get(what, {}), seeds) for what in table.measures]
    return {
        "table": table.name,
        "caption": table.caption,
        "source": table.source,
        "note": table.note,
        "target": table.target,
        "seeds": list(seeds),
        "columns": table.columns,
        "rows": [row.name for row in table.row],
        **parts[0],
        "also": parts[1:],
    }


def _part(table: Table, what: str, values: Values, seeds: Sequence[int]) -> dict[str, Any]:
    """One measure: cells and differences."""
    cells = []
    for cell in table.cells():
        measured = values.get((cell.row, cell.column), {})
        have = [v for v in measured.values() if v is not None]
        mean, spread = mean_spread(have)
        published, its_spread = table.published(cell, what)
        cells.append(
            {
                "row": cell.row,
                "column": cell.column,
                "published": published,
                "published_spread": its_spread,
                "mean": mean,
                "spread": spread,
                "runs": len(have),
                "values": {str(seed): measured.get(seed) for seed in seeds},
            }
        )
    return {
        "measure": what,
        "cells": cells,
        "differences": _differences(table, values, cells),
    }


def parts_of(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The headline measure, then the further ones: title, and what grid_rows takes."""
    more = found.get("also", ())
    named = [title(WORDS.get(part["measure"], part["measure"])) for part in more]
    return [("", found), *((name, {**found, **part}) for name, part in zip(named, more))]


def _differences(table: Table, values: Values, cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every row against the reference row, or against those it names; columns likewise where the
    table asks for it."""
    published = {(c["row"], c["column"]): c["published"] for c in cells}
    reference = table.reference or table.row[0].name
    pairs = [
        ((row.name, column), (other, column), column)
        for column in table.columns
        for row in table.row
        for other in ((reference,) if row.against is None else row.against)
        if row.name != other
    ]
    if base := table.reference_column:
        pairs += [
            ((row.name, column), (row.name, base), row.name)
            for row in table.row
            for column in table.columns
            if column != base
        ]
    found = []
    for one, other, within in pairs:
        if one not in published or other not in published:
            continue
        names = (one[0], other[0]) if one[0] != other[0] else (one[1], other[1])
        a, b = published[one], published[other]
        found.append(
            {
                "what": names[0],
                "against": names[1],
                "within": within,
                "published": a - b if a is not None and b is not None else None,
                **paired(values.get(one, {}), values.get(other, {})),
            }
        )
    return found


def paired(one: dict[int, float | None], other: dict[int, float | None]) -> dict[str, Any]:
    """Mean and spread of the differences at the same seeds, and a 95 % interval (t) of the mean."""
    both = [(one[s], other[s]) for s in one if s in other]
    gaps = [a - b for a, b in both if a is not None and b is not None]
    mean, spread = mean_spread(gaps)
    half = None
    if spread is not None and len(gaps) > 1:
        half = float(stats.t.ppf(0.975, len(gaps) - 1)) * spread / math.sqrt(len(gaps))
    return {"mean": mean, "spread": spread, "pairs": len(gaps), "interval": half}


def value(mean: Any, spread: Any = None, sign: bool = False) -> str:
    """'66.36 ± 0.35', large ones as '13,315', tiny and huge ones as powers of ten."""
    if not finite(mean):
        return "–"
    plus = "+" if sign else ""
    size = max(abs(mean), spread if finite(spread) else 0.0)
    if 1e4 <= size < 1e12:
        form = f"{plus},.0f"
    else:
        form = f"{plus}.2f" if 0.095 <= size < 1e4 or size == 0 else f"{plus}.3g"
    return f"{mean:{form}}" + (f" ± {spread:{form.lstrip('+')}}" if finite(spread) else "")


def grid_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the table: published and measured side by side in every column that has
    something published."""
    cells = {(c["row"], c["column"]): c for c in found["cells"]}
    printed = {c["column"] for c in found["cells"] if c["published"] is not None}
    head = [""]
    for column in found["columns"]:
        head += [f"{column}, published", f"{column}, measured"] if column in printed else [column]
    rows = []
    for row in found["rows"]:
        line = [row]
        for column in found["columns"]:
            cell = cells.get((row, column))
            both = column in printed
            if cell is None:
                line += [""] * (1 + both)
                continue
            line += [value(cell["published"], cell["published_spread"])] * both
            line.append(value(cell["mean"], cell["spread"]))
        rows.append(line)
    return head, rows


def difference_rows(found: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    head = ["difference", "in", "published", "measured", "95 % interval", "pairs"]
    rows = []
    for d in found["differences"]:
        interval = "–"
        if finite(d["interval"]):
            low, high = d["mean"] - d["interval"], d["mean"] + d["interval"]
            interval = f"{value(low, sign=True)} to {value(high, sign=True)}"
        rows.append(
            [
                f"{d['what']} − {d['against']}",
                d["within"],
                value(d["published"], sign=True),
                value(d["mean"], d["spread"], sign=True),
                interval,
                str(d["pairs"]),
            ]
        )
    return head, rows


def markdown(found: dict[str, Any]) -> str:
    """For the docs."""
    seeds = ", ".join(str(s) for s in found["seeds"])
    said = f"Source: {found['source']}. Measured with seeds {seeds}; ± is the standard deviation."
    parts = [f"**{_cell(found['caption'])}**", said]
    if found["note"]:
        parts.append(found["note"])
    for name, part in parts_of(found):
        parts += [f"**{_cell(name)}**"] if name else []
        parts.append(_markdown(*grid_rows(part)))
        head, rows = difference_rows(part)
        if rows:
            parts += ["Paired differences (same seeds):", _markdown(head, rows)]
    return "\n\n".join(parts) + "\n"


def _markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(_cell(c) for c in line) + " |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def scaled(number: float | None, factor: float) -> float | None:
    return None if number is None or not np.isfinite(number) else number * factor
