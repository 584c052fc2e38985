"""cupola invert: can inputs be rebuilt from what a layer tells of them?"""

from __future__ import annotations

from typing import Annotated

import typer

from cupola.cli.runs import AsJson, Folder, Quiet
from cupola.cli.shell import Shell, app, print_json


@app.command()
def invert(
    folder: Folder,
    layer: Annotated[
        list[str] | None,
        typer.Option(help="By name or place among the activations; may be repeated."),
    ] = None,
    images: Annotated[int, typer.Option(min=1, help="So many of the site's images.")] = 3,
    site: Annotated[int, typer.Option(min=0, help="Whose images.")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="Of the search, for each picture.")] = 300,
    seed: Annotated[int, typer.Option(min=0, help="Of the first guess.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack a finished run's model: rebuild images from a feature map and from sparsity."""
    from cupola.audit.inversion import Attack, inversion_audit
    from cupola.cli.display import showing

    Shell.json = as_json
    wanted = [int(w) if w.lstrip("-").isdigit() else w for w in layer or ["0"]]
    with showing(quiet or as_json) as step:
        found = inversion_audit(
            folder,
            layers=wanted,
            images=images,
            site=site,
            attack=Attack(steps=steps, seed=seed),
            step=step,
        )
    if as_json:
        print_json({"folder": str(folder), **found})
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(title=f"rebuilt from what is told of one image ({images} tried)")
    for heading in ("layer", "property", "SSIM", "PSNR, dB"):
        table.add_column(heading, justify="right" if heading[0] in "SP" else "left")
    for row in found["summary"]:
        table.add_row(row["layer"], row["property"], f"{row['ssim']:.3f}", f"{row['psnr']:.1f}")
    chance = found["chance"]
    table.add_row("–", "the site's mean image", f"{chance['ssim']:.3f}", f"{chance['psnr']:.1f}")
    console.print(table)
    console.print("a failed attack proves nothing: a better one may come", style="dim")
    if not quiet:
        console.print(f"pictures: {folder / 'inversion.png'}", soft_wrap=True, style="dim")
