"""cupola sources: the trained models that a plan can build on."""

from __future__ import annotations

import typer

from cupola.cli.check_plan import show
from cupola.cli.runs import AsJson
from cupola.cli.shell import app


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
