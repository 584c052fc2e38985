"""cupola check, data, recipes, models, sources: what there is, and what a plan would do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cupola.cli.runs import AsJson, PlanFile, Settings
from cupola.cli.shell import app, print_json


@app.command()
def check(plan: PlanFile, settings: Settings = None, as_json: AsJson = False) -> None:
    """Say what a plan will do, send, reveal and cost."""
    from cupola.analysis import checked

    found = checked.check(plan, settings=settings or ())
    if as_json:
        print_json(dict(found))
        return
    from rich.console import Console

    console = Console(highlight=False)
    for line in found.lines:
        console.print(line, soft_wrap=True)


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the published methods that a plan can name."""
    from cupola.training.recipes import RECIPES

    rows = [
        {
            "name": r.name,
            "summary": r.summary,
            "source": r.source,
            "local": r.local,
            "server": r.server,
            "participation": r.participation,
            "privacy": r.privacy,
            "sum": r.sum,
            "method": r.method,
        }
        for r in RECIPES.values()
    ]
    show(rows, ["name", "summary", "source"], as_json)


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the models that a plan can name, with their options."""
    from cupola import nn

    rows = [
        {"name": name, "summary": about, "options": _options(nn.options(name))}
        for name, about in nn.describe().items()
    ]
    show(rows, ["name", "summary", "options"], as_json)


def _options(options: dict[str, Any]) -> dict[str, Any]:
    import inspect

    return {k: "(needed)" if v is inspect.Parameter.empty else v for k, v in options.items()}


def show(rows: list[dict[str, Any]], columns: list[str], as_json: bool) -> None:
    """Print rows as a table of these columns, or all of them as JSON."""
    if as_json:
        print_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, no_wrap=column == "name", overflow="fold")
    for row in rows:
        cells = (row[column] for column in columns)
        table.add_row(*(_pairs(c) if isinstance(c, dict) else str(c) for c in cells))
    Console(highlight=False).print(table)


def _pairs(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value}".lower() for key, value in options.items())


@app.command()
def sources(as_json: AsJson = False) -> None:
    """List the trained models that the model `pretrained` can build on."""
    from cupola.nn.sources.trained import table, weights_file

    rows = [
        {
            "name": entry.name,
            "summary": entry.about,
            "input": entry.preprocessing.size,
            "classes": entry.classes,
            "head of 10": (entry.features + 1) * 10,
            "weights": "missing" if weights_file(entry) is None else "here",
            "where": entry.where,
        }
        for entry in table()
    ]
    show(rows, [key for key in rows[0] if key != "where"], as_json)
    if as_json:
        return
    missing: dict[str, list[str]] = {}
    for row in rows:
        if row["weights"] == "missing":
            missing.setdefault(str(row["where"]), []).append(str(row["name"]))
    for where, named in missing.items():
        typer.echo(f"{', '.join(named)}: {where}")
    if missing:
        typer.echo("Name the file as model.weights, or put it into the folder CUPOLA_WEIGHTS.")


data_app = typer.Typer(help="List data sets, get them, and see who holds what.")
app.add_typer(data_app, name="data")


@data_app.callback(invoke_without_command=True)
def data(context: typer.Context, as_json: AsJson = False) -> None:
    """List data sets, get them, and see who holds what."""
    if context.invoked_subcommand is not None:
        return
    from cupola import data as datasets

    rows = [
        {
            "name": name,
            "summary": " ".join(datasets.describe(name).partition("\n\n")[0].split()),
            "options": _options(datasets.options(name)),
        }
        for name in datasets.names()
    ]
    show(rows, ["name", "summary"], as_json)


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="A data set that has an official address.")],
    options: Settings = None,
) -> None:
    """Download a data set from its official address and check it."""
    from cupola import data as datasets
    from cupola.analysis.plan_file import parse_setting
    from cupola.errors import PlanError

    if name in datasets.names() and "download" not in datasets.options(name):
        raise PlanError(f"{name} needs no download")
    source = datasets.load(name, download=True, **dict(parse_setting(o) for o in options or ()))
    if isinstance(source, datasets.Owners):
        samples = int(source.sizes.sum())
        typer.echo(f"{name} is ready: {len(source.owners):,} owners, {samples:,} samples")
        return
    test = f", {len(source.test):,} for testing" if source.test is not None else ""
    typer.echo(f"{name} is ready: {len(source.train):,} samples for training{test}")


@data_app.command("show")
def data_show(
    plan: PlanFile,
    settings: Settings = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="PNG or SVG file.")
    ] = None,
) -> None:
    """Draw which site holds which classes."""
    from cupola.analysis.plan_file import load
    from cupola.data.site_picture import picture
    from cupola.errors import PlanError
    from cupola.training.build import federated_data
    from cupola.training.plan import Plan

    whole = load(plan, settings or (), of=Plan).expand()[0][1]
    path = out or Path(f"{whole.name}-sites.png")
    if path.suffix not in (".png", ".svg"):
        raise PlanError(f"--out {path}: the picture is a .png or .svg file")
    sites = federated_data(whole)
    path.write_bytes(picture(sites, "svg" if path.suffix == ".svg" else "png"))
    sizes = sites.sizes()
    typer.echo(f"{len(sites):,} sites, {int(sizes.sum()):,} samples; wrote {path}")
