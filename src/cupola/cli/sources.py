"""cupola sources: the trained models that a plan can build on."""

from __future__ import annotations

from cupola.cli.look import show
from cupola.cli.runs import AsJson
from cupola.cli.shell import app


@app.command()
def sources(as_json: AsJson = False) -> None:
    """List the trained models that the model `pretrained` can build on."""
    from cupola.nn.sources import table

    rows = [
        {
            "name": entry.name,
            "summary": entry.about,
            "input": entry.preprocessing.size,
            "classes": entry.classes,
            "head of 10": (entry.features + 1) * 10,
            "weights": entry.where,
        }
        for entry in table()
    ]
    show(rows, list(rows[0]), as_json)
