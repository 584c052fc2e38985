"""cupola demo: a handful of published methods on real data, side by side, without a network."""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated

import typer

from cupola.cli.runs import AsJson, Quiet
from cupola.cli.shell import app, print_json

METHODS = ("centralised", "fedavg", "fedprox", "fedadam", "scaffold", "fedcmb-wga", "fedsmb")
TARGET = 0.9


@app.command()
def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="Folder for the runs.")
    ] = Path("runs/demo"),
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare seven methods on handwritten digits at ten sites; takes seconds, needs no network."""
    from rich.console import Console

    from cupola import report
    from cupola.analysis.plan_file import load
    from cupola.analysis.session import run
    from cupola.cli.display import comparison, watching

    talk = Console(stderr=True, quiet=quiet or as_json, highlight=False)
    talk.print(
        "1,438 handwritten digits at ten sites, each of which sees mostly a few of the classes.\n"
        "Seven ways to learn one model from them, and what each has to send:"
    )
    folders = []
    with (
        watching(quiet, log=not as_json) as watch,
        as_file(files("cupola.training") / "plans" / "demo") as plans,
    ):
        for name in METHODS:
            folder = out / name
            run(load(plans / f"{name}.toml"), folder, overwrite=True, progress=watch)
            folders.append(folder)
    page = report.compare(folders, out / "report.html", target=TARGET, name="Demo: digits")
    if as_json:
        rows = report.table(folders, target=TARGET)
        for name, row in zip(METHODS, rows):
            row["label"] = name
        print_json({"folder": str(out), "report": str(page), "runs": rows})
        return
    console = Console(highlight=False)
    console.print(comparison([str(f) for f in folders], TARGET, "", METHODS))
    if quiet:
        return
    console.print(
        f"\nReport with curves: [bold]{page}[/]\n"
        f"Every run is a folder: plan, history, ledger of what crossed borders, model, report.\n\n"
        "To try next:\n"
        f"  cupola check {folders[1]}/plan.toml\n"
        f"  cupola run {folders[1]}/plan.toml --set local.lr=0.1 --set data.partition.alpha=0.05\n"
        "  cupola recipes, cupola models, cupola data",
        soft_wrap=True,
    )
