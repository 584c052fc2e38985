"""cupola search: what a plan could leave out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cupola.cli.compare_runs import Out, tell
from cupola.cli.runs import AsJson, PlanFile, Quiet, Settings
from cupola.cli.shell import FAILED, app, print_json

search_app = typer.Typer(help="Search for what a plan could leave out.", no_args_is_help=True)
app.add_typer(search_app, name="search")


@search_app.callback()
def search() -> None:
    """Search for what a plan could leave out."""


@search_app.command()
def freeze(
    plan: PlanFile,
    budget: Annotated[
        int | None,
        typer.Option(min=1, metavar="ROUNDS", help="Most rounds in all (default: 8 trials)."),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0, help="How much worse than full training is as good (accuracy: 0..1)."),
    ] = 0.01,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Always train these; may be repeated."),
    ] = None,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Find how much of a model need not be trained (FedPT); run it again to resume."""
    from cupola.cli.display import watching
    from cupola.sweep.freeze_search import define
    from cupola.sweep.freeze_search import search as carry_out

    made = define(plan, tolerance, budget, keep or (), settings or ())
    folder = out or Path("runs") / f"{made.plan.name}-freeze"
    silent = quiet or as_json
    tell(silent, f"at most {made.trials} trials, {made.budget:,} rounds, into {folder}")
    with watching(silent) as watch:
        found = carry_out(made, folder, watch, lambda line: tell(silent, line))
    if as_json:
        print_json({"folder": str(folder), **found})
    else:
        _show(found, folder)
    if not found["best"]:
        raise typer.Exit(FAILED)


def _show(found: dict[str, Any], folder: Path) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from cupola.base import formatting
    from cupola.sweep.sweep_sections import frozen

    console = Console(highlight=False)
    sheet = Table(title=f"what to freeze in {escape(found['name'])}", title_justify="left")
    sheet.add_column("frozen", overflow="fold")
    for heading in ("trained", f"{escape(found['metric'])}, validation", "bytes", ""):
        sheet.add_column(heading, justify="right")
    for trial in found["trials"]:
        score = trial["score"]
        said = formatting.metric(found["metric"], score) if score is not None else trial["reason"]
        best = found["best"] is not None and trial["freeze"] == found["best"]["freeze"]
        sheet.add_row(
            escape(frozen(trial)),
            f"{100 * trial['trainable']:.2f} %",
            escape(said or "not run"),
            formatting.size(trial["bytes"]),
            "best" if best else "as good" if trial["accepted"] else "worse",
        )
    console.print(sheet)
    console.print(f"{found['ended']}; {found['rounds']:,} rounds", markup=False)
    if found["best"]:
        console.print(f"plan: {folder / 'best.toml'}", soft_wrap=True, markup=False)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
    console.print(found["privacy"], style="dim", markup=False)
