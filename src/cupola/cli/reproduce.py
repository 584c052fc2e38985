"""cupola reproduce: published tables, run again by a checkout's tool, `experiments/reproduce`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

import cupola
from cupola.cli.compare_runs import Out
from cupola.cli.runs import AsJson, Quiet
from cupola.cli.shell import app
from cupola.errors import PlanError

HERE = (Path("experiments"), Path())


@app.command()
def reproduce(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A published table.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="List the tables and stop.")] = False,
    seeds: Annotated[int | None, typer.Option(min=1, help="Number of seeds.")] = None,
    plans: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder with the published tables.")
    ] = None,
    out: Out = None,
    hours: Annotated[
        bool, typer.Option("--hours", help="Say how long it will take, and stop.")
    ] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the plans behind a published table; run it again to resume."""
    tool = load_tool("command", *([plans] if plans else []), *HERE)
    if listing or name is None:
        tool.show_tables(plans, as_json)
    else:
        tool.carry_out(name, plans, seeds, out, hours=hours, as_json=as_json, quiet=quiet)


def load_tool(part: str, *named: Path) -> ModuleType:
    """A module of `experiments/reproduce`, which no wheel holds and nothing else here imports.

    Looked for in the checkout that Cupola runs from, and in the folders named.
    """
    checkout = Path(cupola.__file__).resolve().parents[2] / "experiments"
    for folder in (checkout, *named):
        if (folder / "reproduce" / "tables.py").is_file():
            if (place := str(folder.resolve())) not in sys.path:
                sys.path.insert(0, place)
            return importlib.import_module(f"reproduce.{part}")
    raise PlanError(
        "published tables are reproduced from a source checkout, by the tool in its folder "
        "experiments, which is not installed: call cupola in the checkout, or say where that "
        "folder is with `cupola reproduce --plans DIR`"
    )
