"""cupola run, resume, export."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cupola.cli.shell import FAILED, answer_in_json, app, print_json
from cupola.errors import CupolaError, PlanError

if TYPE_CHECKING:
    from cupola.analysis.header import PlanHeader
    from cupola.analysis.run_folder import Run

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan: a TOML file.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated."),
]
AsJson = Annotated[
    bool,
    typer.Option("--json", callback=answer_in_json, help="Print one JSON document, nothing else."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", metavar="DIR", help="Folder for the run.")]
Folder = Annotated[Path, typer.Argument(metavar="DIR", help="A run folder.")]


@app.command()
def run(
    plan: PlanFile,
    settings: Settings = None,
    out: Out = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
    overwrite: Annotated[bool, typer.Option(help="Replace the run that DIR holds.")] = False,
    twin: Annotated[bool, typer.Option("--twin", help="Also run the centralised twin.")] = False,
) -> None:
    """Carry out a plan: one run, or several if it has seeds or a grid."""
    # Before numpy is loaded: clearing huge pages takes longer than what is written to them.
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    from cupola.analysis.plan_file import load

    whole: PlanHeader = load(plan, [*(settings or ()), *(["twin=true"] if twin else ())])
    carry_out(whole, out, overwrite, as_json, quiet)


def carry_out(
    plan: PlanHeader, out: Path | None, overwrite: bool, as_json: bool, quiet: bool
) -> None:
    """Run a plan, and show its progress and its result."""
    from cupola.analysis.session import run_all

    with _watching(quiet, as_json) as watch:
        runs = run_all(plan, out, overwrite=overwrite, progress=watch)
    show(runs, as_json, quiet)


def _watching(quiet: bool, as_json: bool) -> Any:
    """Progress, if it is wanted; what shows it is slow to load."""
    if quiet or (as_json and not sys.stderr.isatty()):
        return nullcontext()
    from cupola.cli.display import watching

    return watching(quiet, log=not as_json)


@app.command()
def resume(folder: Folder, as_json: AsJson = False, quiet: Quiet = False) -> None:
    """Resume a run that was stopped or killed; the result is the same as without the stop."""
    from cupola.analysis.session import resume as go_on

    with _watching(quiet, as_json) as watch:
        runs = go_on(folder, progress=watch)
    show(runs, as_json, quiet)


def show(runs: list[Run], as_json: bool, quiet: bool) -> None:
    if as_json:
        results = [{"folder": str(run.folder), **run.result} for run in runs]
        print_json(results[0] if len(results) == 1 else {"runs": results})
    else:
        from cupola.cli.display import show_runs

        show_runs(runs, quiet)
    failed = [run for run in runs if run.status != "finished"]
    for run in failed:
        typer.echo(f"cupola: {run.folder}: {run.result.get('reason', run.status)}", err=True)
    if failed:
        raise typer.Exit(FAILED)


@app.command()
def export(
    folder: Folder,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="CSV file.")] = None,
    tensorboard: Annotated[
        Path | None, typer.Option("--tensorboard", metavar="DIR", help="TensorBoard logs.")
    ] = None,
) -> None:
    """Write the history of a run, or of a folder of runs, for other tools."""
    from cupola.analysis.export import to_csv, to_tensorboard
    from cupola.pages.folder import find_runs

    if csv is None and tensorboard is None:
        raise PlanError("say where to: --csv FILE or --tensorboard DIR")
    runs = find_runs(folder)
    if not any(run.history for run in runs):
        raise CupolaError(f"{folder} has no finished round yet")
    if csv is not None:
        to_csv(runs, csv)
        typer.echo(f"wrote {csv}")
    if tensorboard is not None:
        to_tensorboard(runs, tensorboard)
        typer.echo(f"wrote {tensorboard}; look at it with `tensorboard --logdir {tensorboard}`")
