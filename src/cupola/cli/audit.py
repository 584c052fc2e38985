"""cupola audit: what attacks find in a finished run, and whether its epsilon can be true."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cupola.cli.runs import AsJson, Folder, Quiet
from cupola.cli.shell import FAILED, Shell, app, print_json

if TYPE_CHECKING:
    from rich.console import Console


@app.command()
def audit(
    folder: Folder,
    trials: Annotated[
        int, typer.Option(min=30, help="Repetitions with a canary, and as many without.")
    ] = 1000,
    rounds: Annotated[int, typer.Option(min=1, help="Repeat at most so many rounds.")] = 6,
    shadows: Annotated[
        int | None,
        typer.Option(
            min=0, help="Shadow runs for the likelihood ratio; 0: none.", show_default="16 if quick"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of all that the audit draws.")] = 0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes.", show_default="one per core")
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Attack a finished run: membership inference, and a lower bound on its epsilon."""
    from cupola.audit import audit as carry_out
    from cupola.cli.display import showing

    Shell.json = as_json
    with showing(quiet or as_json) as step:
        found = carry_out(
            folder,
            trials=trials,
            rounds=rounds,
            shadows=shadows,
            seed=seed,
            workers=workers or os.cpu_count() or 1,
            step=step,
        )
    if as_json:
        print_json({"folder": str(folder), **found})
    else:
        from rich.console import Console

        console = Console(highlight=False)
        _show(console, found)
        if not quiet:
            console.print(f"everything is in {folder / 'audit.json'}", soft_wrap=True, style="dim")
    if found["verdict"] == "refuted":
        raise typer.Exit(FAILED)


def _show(console: Console, found: dict[str, Any]) -> None:
    def line(name: str, text: str) -> None:
        console.print(f"[bold]{name:<12}[/] {text}", soft_wrap=True)

    line("audit of", found["name"])
    if found["note"]:
        line("note", found["note"])
    if found["epsilon"]:
        _show_epsilon(line, found["epsilon"])
    members = found["membership"]
    if members is None:
        line("membership", f"not tried: {found['without_membership']}")
        return
    line(
        "membership",
        f"{members['members']:,} training rows against {members['others']:,} others "
        f"({members['held_out']})",
    )
    line("  loss", _attack(members["loss_threshold"]))
    ratio = members["likelihood_ratio"]
    said = members["without_likelihood_ratio"]
    line("  ratio", f"{ratio['shadows']} shadow runs: {_attack(ratio)}" if ratio else f"no: {said}")


def _show_epsilon(line: Callable[[str, str], None], found: dict[str, Any]) -> None:
    percent = f"{100 * found['confidence']:g} %"
    line(
        "mechanism",
        f"{found['mechanism']}, hides every {found['unit']} ({found['neighbours']}); "
        f"{found['rounds']} of its rounds repeated at site {found['site']}, "
        f"{found['trials']:,} times with a canary and {found['trials']:,} without",
    )
    line("claim", f"epsilon {_number(found['claim'])} at delta {found['delta']:g} for these rounds "
                  f"(the whole run: {_number(found['run_epsilon'])})")  # fmt: skip
    for canary in found["canaries"]:
        bound, guess = canary["lower_bound"], canary["gaussian_estimate"]
        line(
            f"  {canary['canary']}",
            f"epsilon is at least {bound['epsilon']:.3g} (no assumption); "
            f"{guess['epsilon']:.3g} if {guess['assumption']}",
        )
    line("reach", f"so many trials can show at most epsilon {found['reach']:.3g}")
    colour = "red" if found["verdict"] == "refuted" else "green"
    meaning = (
        f"the claim is false, with confidence {percent}: noise, clipping, sampling or accounting "
        "is broken"
        if found["verdict"] == "refuted"
        else f"nothing contradicts the claim, at confidence {percent}; this is no proof of it"
    )
    line("verdict", f"[{colour}]{found['verdict']}[/]: {meaning}")


def _number(value: float | None) -> str:
    return "infinite" if value is None or value == float("inf") else f"{value:.4g}"


def _attack(found: dict[str, Any]) -> str:
    low, high = found["advantage_interval"]
    tpr = found["tpr"]["0.01"]
    share = "too few rows" if tpr is None else f"{100 * tpr:.2g} %"
    return (
        f"AUC {found['auc']:.3f} ({found['auc_interval'][0]:.3f} to "
        f"{found['auc_interval'][1]:.3f}), found at 1 % false alarms: {share}, "
        f"advantage {found['advantage']:.3f} ({low:.3f} to {high:.3f})"
    )
