"""cupola report, compare, sweep, search: looking at many runs, and making them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cupola.cli.runs import AsJson, Folder, PlanFile, Quiet, Settings
from cupola.cli.shell import FAILED, app, print_json
from cupola.errors import PlanError

if TYPE_CHECKING:
    from rich.console import Console

Out = Annotated[
    Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for the runs.")
]


class Strategy(StrEnum):
    grid = "grid"
    random = "random"
    tpe = "tpe"
    halving = "halving"


@app.command()
def report(
    folder: Folder,
    trust: Annotated[
        bool, typer.Option("--trust", help="Import the code that the plan in DIR names.")
    ] = False,
) -> None:
    """Make report.html again, for a run or a folder of runs, and print its path."""
    from cupola.base.importing import trusting

    with trusting(trust):
        typer.echo(str(_draw(folder, trust)))


def _draw(folder: Path, trust: bool) -> Path:
    """The report that fits what the folder holds."""
    from cupola import report as reports

    if (folder / "search.json").is_file():
        from cupola.sweep.freeze_search import draw as draw_search

        return draw_search(folder)
    if (folder / "sweep.json").is_file():
        from cupola.sweep.sweeps import draw as draw_sweep

        return draw_sweep(folder)
    if (folder / "results.json").is_file():
        from cupola.cli.reproduce import HERE, load_tool

        # Code that lies here may have come with the folder.
        return load_tool("run", *(HERE if trust else ())).draw(folder)
    return reports.write(folder, trust=trust)


@app.command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Run folders, or folders of runs.")
    ],
    target: Annotated[
        float | None,
        typer.Option(help="Count rounds and bytes up to this level, for example 0.9."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Also write an HTML report.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs: what they reached, and what it cost to reach the target."""
    from cupola import report as reports

    if out is not None and out.suffix != ".html":
        raise PlanError(f"--out {out}: the report is an .html file")
    rows = reports.table(folders, target)
    if out is not None:
        reports.compare(folders, out, target)
    if as_json:
        print_json({"runs": rows, "report": str(out) if out else None})
        return
    from rich.console import Console

    from cupola.cli.display import comparison

    console = Console(highlight=False)
    console.print(comparison([str(f) for f in folders], target, "comparison"))
    if out is not None:
        console.print(f"report: {out}", soft_wrap=True, markup=False)


@app.command()
def sweep(
    plan: PlanFile,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="What to vary; also KEY=LOW..HIGH[:log]."),
    ] = None,
    strategy: Annotated[Strategy, typer.Option(help="How to search.")] = Strategy.grid,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Settings to draw (random, tpe, halving).")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, metavar="ROUNDS", help="Most rounds in all.")
    ] = None,
    objective: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="The metric, bytes, epsilon; may be repeated."),
    ] = None,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Try many settings of a plan, choose on validation data; run it again to resume."""
    from cupola.cli.display import watching
    from cupola.sweep.sweeps import define
    from cupola.sweep.sweeps import sweep as carry_out

    made = define(plan, over or (), strategy.value, trials, budget, settings or (), objective or ())
    folder = out or Path("runs") / f"{made.plan.name}-sweep"
    silent = quiet or as_json
    tell(silent, f"{made.count} settings, {made.cost():,} rounds in all, into {folder}")
    with watching(silent) as watch:
        found = carry_out(made, folder, watch)
    _conclude(found, folder, as_json, _show_sweep)


def _show_sweep(console: Console, found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from cupola.sweep.sweep_sections import cost

    sheet = Table(title=f"sweep of {escape(found['name'])}", title_justify="left")
    sheet.add_column("setting", overflow="fold")
    sheet.add_column(f"{escape(found['metric'])}, validation", justify="right")
    costs = found["objectives"][1:]
    for heading in (*costs, "rounds"):
        sheet.add_column(heading, justify="right")
    for trial in found["trials"][:20]:
        spent = (cost(name, trial[name]) for name in costs)
        star = "* " if costs and trial["label"] in found["front"] else ""
        what = (escape(star + trial["label"]), escape(_score(found, trial)), *spent)
        sheet.add_row(*what, str(trial["rounds"]))
    console.print(sheet)
    if costs:
        console.print("* on the Pareto front: nothing else is as good in all and better in one")
    if found["best"]:
        console.print(f"best: {found['best']['label']}", markup=False, style="bold")
    else:
        console.print("no setting was measured on validation data", style="red")


def _score(found: dict[str, Any], trial: dict[str, Any]) -> str:
    """A trial's score, or why it has none."""
    from cupola.base.formatting import metric

    measured = trial["score"] is not None
    return metric(found["metric"], trial["score"]) if measured else trial["reason"] or "not run"


def _conclude(
    found: dict[str, Any],
    folder: Path,
    as_json: bool,
    show: Callable[[Console, dict[str, Any]], None],
) -> None:
    """The end of a command that chose among runs: its table, and where files are."""
    from rich.console import Console

    if as_json:
        print_json({"folder": str(folder), **found})
    else:
        console = Console(highlight=False)
        show(console, found)
        if found["best"]:
            console.print(f"plan: {folder / 'best.toml'}", soft_wrap=True, markup=False)
        console.print(f"report: {folder / 'report.html'}", soft_wrap=True, markup=False)
        console.print(found["privacy"], style="dim", markup=False)
    if not found["best"]:
        raise typer.Exit(FAILED)


def tell(silent: bool, line: str) -> None:
    if not silent:
        typer.echo(line, err=True)


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
    _conclude(found, folder, as_json, _show_search)


def _show_search(console: Console, found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from cupola.base import formatting
    from cupola.sweep.sweep_sections import frozen

    sheet = Table(title=f"what to freeze in {escape(found['name'])}", title_justify="left")
    sheet.add_column("frozen", overflow="fold")
    for heading in ("trained", f"{escape(found['metric'])}, validation", "bytes", ""):
        sheet.add_column(heading, justify="right")
    for trial in found["trials"]:
        best = found["best"] is not None and trial["freeze"] == found["best"]["freeze"]
        sheet.add_row(
            escape(frozen(trial)),
            f"{100 * trial['trainable']:.2f} %",
            escape(_score(found, trial)),
            formatting.size(trial["bytes"]),
            "best" if best else "as good" if trial["accepted"] else "worse",
        )
    console.print(sheet)
    console.print(f"{found['ended']}; {found['rounds']:,} rounds", markup=False)
