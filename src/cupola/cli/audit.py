"""cupola audit: what attacks find in a finished run, and whether its epsilon can be true."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cupola.cli.runs import AsJson, Folder, Quiet
from cupola.cli.shell import FAILED, app, print_json

if TYPE_CHECKING:
    from rich.console import Console


@app.command()
def audit(
    folder: Folder,
    trials: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Repetitions with a canary, and as many without; 0: none.",
            show_default="what 60 s allow, up to 5000",
        ),
    ] = None,
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
    """Test the parts of a finished run's mechanism and attack it: can its epsilon be true?"""
    from cupola.audit import audit as carry_out
    from cupola.cli.display import showing

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
        _show_parts(console, found["parts"])
        _show_epsilon(line, found["epsilon"])
        _show_verdict(line, found)
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


def _show_parts(console: Console, found: dict[str, Any]) -> None:
    """A table of what was tested, with which power, and what it showed."""
    from cupola.audit.judging import said_p

    rows = [("part", "verdict", "power for its fault", "found")]
    for test in found["tests"]:
        shown = said_p(test["p"]) if "p" in test else f"limit {test['limit']:.4g}"
        verdict = "refuted" if test["verdict"] == "refuted" else "holds"
        power = f"{_percent(test['power'])}, {test['fault']}"
        rows.append((test["part"], verdict, power, f"{test['found']} ({shown})"))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    for number, row in enumerate(rows):
        text = "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths)), row[3]])
        style = "bold" if number == 0 else "red" if row[1] == "refuted" else None
        console.print(text, soft_wrap=True, markup=False, style=style)


def _percent(share: float) -> str:
    """Rounded down, so that nothing uncertain is called certain."""
    return "100 %" if share == 1 else f"{math.floor(1e4 * share) / 100:g} %"


def _show_verdict(line: Callable[[str, str], None], found: dict[str, Any]) -> None:
    from cupola.audit.judging import said_p

    parts, canaries = found["parts"], found["epsilon"]
    rate = f"a sound run is refuted with probability at most {100 * found['false_alarm']:.3g} %"
    if found["verdict"] == "refuted":
        said = list(parts["said"])
        for canary in canaries["canaries"]:
            curve = canary["curve"]
            if canary["refutes"]:
                said.append(
                    f"{canary['canary']} canary: epsilon is at least {curve['epsilon']:.3g} at "
                    f"delta {curve['delta']:g}, claimed is {curve['claim']:.3g}"
                )
        if (canaries["many_canaries"] or {}).get("refutes"):
            said.append(f"many canaries ({said_p(canaries['many_canaries']['p'])})")
        line("verdict", f"[red]refuted[/]: {'; '.join(said)}; {rate}")
        return
    weak = [test["part"] for test in parts["tests"] if test["power"] < 0.99]
    seen = f"{len(parts['tests'])} parts tested, each of which would show its fault"
    if weak:
        seen += f" with a probability of at least 99 %, but for: {', '.join(weak)}"
    else:
        seen += f" with a probability of at least {_percent(min(parts['least_power'], 0.9999))}"
    line("verdict", f"[green]consistent[/]: {seen}; {rate}; this is no proof of the claim")


def _show_epsilon(line: Callable[[str, str], None], found: dict[str, Any]) -> None:
    from cupola.audit.judging import said_p

    percent = f"{100 * found['confidence']:g} %"
    line(
        "mechanism",
        f"{found['mechanism']}, hides every {found['unit']} ({found['neighbours']}); "
        f"{found['rounds']} of its rounds repeated at site {found['site']}, "
        f"{found['trials'] or 0:,} times with a canary and {found['trials'] or 0:,} without",
    )
    line("claim", f"epsilon {_number(found['claim'])} at delta {found['delta']:g} for these rounds "
                  f"(the whole run: {_number(found['run_epsilon'])})")  # fmt: skip
    if not found["canaries"]:
        line("canaries", f"not tried: {found['without_trials'] or 'no trials were asked for'}")
        return
    for canary in found["canaries"]:
        bound, guess, curve = canary["lower_bound"], canary["gaussian_estimate"], canary["curve"]
        could = "can" if curve["reach"] > 0 else "cannot"
        line(
            f"  {canary['canary']}",
            f"epsilon is at least {bound['epsilon']:.3g} (no assumption); "
            f"{guess['epsilon']:.3g} if {guess['assumption']}; at delta {curve['delta']:g} at "
            f"least {curve['epsilon']:.3g}, claimed {curve['claim']:.3g}; so many trials {could} "
            "refute it",
        )
    many = found["many_canaries"]
    if many:
        line(
            "  many",
            f"{many['canaries']} canaries in each of {many['runs']:,} runs: {many['right']:,} of "
            f"{many['guesses']:,} guesses right ({said_p(many['p'])} if epsilon is "
            f"{many['claim']:.3g} at delta {many['delta']:g}); could have shown epsilon "
            f"{many['reach']:.3g}",
        )
    line(
        "reach",
        f"so many trials can show at most epsilon {found['reach']:.3g} at delta "
        f"{found['delta']:g}, at confidence {percent}",
    )


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
