"""The groups `cupola site` and `cupola compensator`; other modules add their commands."""

from __future__ import annotations

import typer

from cupola.cli.shell import app

site = typer.Typer(no_args_is_help=True, help="Run a site: what it joins, what it sent.")
compensator = typer.Typer(no_args_is_help=True, help="Run the third party of masked sums.")
app.add_typer(site, name="site")
app.add_typer(compensator, name="compensator")
