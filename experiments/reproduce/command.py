"""What `cupola reproduce` does, once its options are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Sheet

from cupola.cli.compare_runs import tell
from cupola.cli.display import watching
from cupola.cli.shell import print_json
from reproduce.hours import forecast
from reproduce.outcome import difference_rows, grid_rows, parts_of, value
from reproduce.run import distinct, jobs, reproduce, seeds_of
from reproduce.tables import find_table, tables


def show_tables(plans: Path | None, as_json: bool) -> None:
    """All tables, with what is published."""
    found = list(tables(plans).values())
    if as_json:
        facts = [
            {
                "name": t.name,
                "caption": t.caption,
                "source": t.source,
                "seeds": list(t.seeds),
                "cells": [c.model_dump(exclude={"plan", "settings"}) for c in t.cells()],
            }
            for t in found
        ]
        print_json(facts)
        return
    for t in found:
        typer.secho(t.name, bold=True)
        typer.echo(f"  {t.caption} ({t.source}); {len(t.seeds)} seeds")
        for cell in t.cells():
            typer.echo(f"  {cell.row} · {cell.column}: {value(cell.published, cell.spread)}")


def carry_out(
    name: str,
    plans: Path | None,
    seeds: int | None,
    out: Path | None,
    *,
    hours: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Say how long the table's runs will take; then, unless `hours`, run them and show it."""
    table = find_table(name, plans)
    folder = out or Path("runs") / "reproduce" / table.name
    chosen = seeds_of(table, seeds)
    work = jobs(table, folder, chosen)
    runs = distinct(work)
    rounds = sum(job.plan.rounds for job in runs)
    silent = quiet or as_json
    tell(silent, f"{table.name}: {len(runs)} runs, {rounds:,} rounds in all, into {folder}")
    planned = forecast(work, folder, lambda line: tell(silent, line))
    facts = {"folder": str(folder), "planned": planned.facts()}
    if hours:
        print_json(facts) if as_json else typer.echo(f"{table.name}: {planned}")
        return
    tell(silent, str(planned))
    with watching(silent) as watch:
        found = reproduce(table, folder, chosen, watch)
    if as_json:
        print_json({**facts, **found})
        return
    _show_table(found, folder)


def _show_table(found: dict[str, Any], folder: Path) -> None:
    console = Console(highlight=False)
    sheets = []
    for measured, part in parts_of(found):
        title = measured or f"{found['caption']} ({found['source']})"
        sheets.append((title, 1, grid_rows(part)))
        sheets.append(("paired differences (same seeds)", 2, difference_rows(part)))
    for title, words, (head, rows) in sheets:
        if not rows:
            continue
        sheet = Sheet(title=escape(title), title_justify="left")
        for i, column in enumerate(head):
            sheet.add_column(escape(column), justify="left" if i < words else "right")
        for row in rows:
            sheet.add_row(*(escape(cell) for cell in row))
        console.print(sheet)
    if found["note"]:
        console.print(found["note"], style="dim", markup=False)
    for file in ("table.md", "report.html"):
        console.print(str(folder / file), soft_wrap=True, markup=False)
