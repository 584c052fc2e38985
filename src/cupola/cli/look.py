"""cupola check, data, recipes, models: what there is, and what a plan would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cupola.cli.runs import AsJson, PlanFile, Settings
from cupola.cli.shell import Shell, app, print_json

if TYPE_CHECKING:
    from rich.console import Console


GROUPS_PRINTED = 5


@app.command()
def check(plan: PlanFile, settings: Settings = None, as_json: AsJson = False) -> None:
    """Say what a plan will do and cost, and whether it equals centralised training."""
    from cupola.analysis.plan_file import load
    from cupola.learn.check import facts as foresee

    Shell.json = as_json
    runs = load(plan, settings or ()).expand()
    facts = {"runs": len(runs), **foresee(runs[0][1])}
    if as_json:
        print_json(facts)
        return
    from rich.console import Console

    from cupola.base import formatting
    from cupola.learn.utility import EQUAL

    data, model, sent = facts["data"], facts["model"], facts["bytes"]
    size = data["samples_per_site"]
    lines = [
        ("plan", f"{facts['name']}: {facts['recipe']}, {_rounds(facts)}"),
        ("runs", f"{len(runs)} (below: the first)" if len(runs) > 1 else "1"),
        ("data", f"{data['name']}, {data['kind']}, {formatting.count(data['samples'], 'sample')}"),
        ("sites", f"{data['sites']:,}, {data['partition']}; samples {size['least']:,} to "
                  f"{size['most']:,}, median {size['median']:,}, {data['empty']:,} empty"),
        ("judged on", _judged(data)),
        ("model", f"{model['name']}, {formatting.count(model['parameters'], 'parameter')}"),
        *_trainable(model),
        ("a round", f"{sent['sites']:g} sites, {formatting.size(sent['per_site_down'])} down and "
                    f"{formatting.size(sent['per_site_up'])} up at each"),
        *_bytes(sent),
        ("links", f"a site's messages take {formatting.duration(facts['link']['seconds'])} a "
                  f"training round at {facts['link']['down']:g} MB/s down and "
                  f"{facts['link']['up']:g} up"),
    ]  # fmt: skip
    console = Console(highlight=False)
    for name, text in lines:
        console.print(f"[bold]{name:<10}[/] {text}", soft_wrap=True)
    if facts["privacy"]:
        _print_privacy(console, facts["privacy"])
    _print_parties(console, facts["sum"], facts["parties"])
    if facts["personalise"] is not None:
        _print_personalise(console, facts["personalise"])
    utility = facts["utility"]
    answer = "[green]yes" if utility["preserved"] else "[red]no"
    console.print(
        f"[bold]equals centralised training: {answer}[/][/] "
        f"(weights of a probe in float64 differ by {utility['difference']:.1g})"
    )
    if not utility["preserved"] and utility["difference"] <= EQUAL:
        console.print(
            "  The probe's few small sites met the same samples as its centralised twin; "
            "the plan's own sites need not.",
            soft_wrap=True,
        )
    for condition in utility["conditions"]:
        mark = "[green]yes[/]" if condition["holds"] else "[red]no [/]"
        reason = f": {condition['reason']}" if condition["reason"] else ""
        console.print(f"  {mark}  {condition['name']}{reason}", soft_wrap=True)
    for line in ground_lines(facts["grounds"]):
        console.print(line, soft_wrap=True)


def ground_lines(grounds: list[dict[str, Any]]) -> list[str]:
    """What a plan's guarantees stand on, the proven ones first."""
    from cupola.analysis.grounds import MEANING

    order = list(MEANING)
    lines = [] if not grounds else ["[bold]what this stands on[/] (nobody outside has reviewed it)"]
    for row in sorted(grounds, key=lambda row: order.index(row["mark"])):
        lines.append(f"  {row['mark']:<19} {row['guarantee']}: {', '.join(row['where'])}")
    return lines


def _bytes(sent: dict[str, Any]) -> list[tuple[str, str]]:
    """What is sent, by phase, and why it may be less."""
    from cupola.base import formatting

    most = "at most " if sent["at_most"] else ""
    each, total = formatting.size(sent["per_round"]), formatting.size(sent["total"])
    whole = f"{each} a round, {most}{total} in all"
    phases: dict[str, float] = {}
    for row in sent["rows"]:
        phases[row["phase"]] = phases.get(row["phase"], 0) + row["down"] + row["up"]
    lines = [("bytes", whole)]
    if len(phases) > 1:
        lines.append(("", ", ".join(f"{name} {formatting.size(n)}" for name, n in phases.items())))
    return lines + [("", f"at most: {reason}") for reason in sent["at_most"]]


def _trainable(model: dict[str, Any]) -> list[tuple[str, str]]:
    """How much of the model is trained, and travels."""
    from cupola.base import formatting

    if model["trainable"] == model["parameters"] and not model["levels"]:
        return []
    share = 100 * model["trainable"] / model["parameters"]
    lines = [("trainable", "; ".join([f"{model['trainable']:,} ({share:.2f} %)", *_frozen(model)]))]
    lines += [
        ("", f"{formatting.count(level['sites'], 'site')} train {level['trainable']:,} of them")
        for level in model["levels"]
    ]
    return lines


def _frozen(model: dict[str, Any]) -> list[str]:
    """What is not trained: how many parameters, where they come from, and that none are sent."""
    counts, mark = model["frozen"], f"(checksum {(model['checksum'] or '')[:8]})"
    origins = {
        "seed": "are frozen and come from a seed",
        "source": f"are frozen and come from '{model['source']}' at every site {mark}",
        "own": "are frozen by the model's own code: each site makes them, none are sent; a site "
        f"whose values differ is refused before it trains {mark}",
    }
    return [f"{counts[kind]:,} {said}" for kind, said in origins.items() if counts[kind]]


def _rounds(facts: dict[str, Any]) -> str:
    from cupola.base import formatting

    said, free = (
        formatting.count(facts["rounds"], "round"),
        facts["rounds"] - facts["training_rounds"],
    )
    return said + (f", {free:,} of them by the coordinator alone" if free else "")


def _print_privacy(console: Console, promise: dict[str, Any]) -> None:
    """What a plan promises, to whom, and what nothing protects."""

    from cupola.base import formatting

    def line(name: str, text: str, colour: str = "bold") -> None:
        console.print(f"[{colour}]{name:<10}[/] {text}", soft_wrap=True)

    noise = "" if promise["noise"] is None else f", noise {promise['noise']:.4g}"
    line(
        "privacy",
        f"{promise['mechanism']}{noise}: hides every {promise['unit']} from "
        f"{promise['against']} ({promise['neighbours']})",
    )
    most = "at most " if promise["at_most"] else ""
    line(
        "epsilon",
        f"{most}{promise['epsilon']:.4g} at delta {promise['delta']:g} "
        f"({promise['neighbours']}), after all that is asked",
    )
    for reason in promise["at_most"]:
        line("", f"at most: {reason}")
    for group in promise["groups"][:GROUPS_PRINTED]:
        if group["samples"]:
            line(
                "",
                f"{group['epsilon']:.4g} at {formatting.count(group['sites'], 'site')} of "
                f"{_samples(group)}, asked "
                f"{formatting.count(group['answers'], 'time')}",
            )
    more = len(promise["groups"]) - GROUPS_PRINTED
    if more > 0:
        line("", f"and {more:,} more groups of sites, which spend less (--json lists them)")
    for figure in promise["published"]:
        line("published", figure)
    for told in promise["unprotected"]:
        line("open", f"nothing protects {told}", "yellow")
    for warning in promise["warnings"]:
        line("note", warning, "yellow")
    line("status", promise["status"])


def _samples(group: dict[str, Any]) -> str:
    from cupola.base import formatting

    least, most = group["least_samples"], group["samples"]
    return ("" if least == most else f"{least:,} to ") + formatting.count(most, "sample")


def _print_parties(
    console: Console, sums: dict[str, Any] | None, parties: list[dict[str, str]]
) -> None:
    """How contributions are added, and what that shows to whom."""
    if sums is None:
        console.print("[bold]sum       [/] plain: nothing hides an answer from the coordinator")
    else:
        console.print(
            f"[bold]sum       [/] masked, by {sums['protocol']}, at least {sums['minimum']} sites; "
            f"parameters modulo 2^{sums['bits']} with {sums['fraction']} fractional bits: a total "
            f"errs by at most {sums['error']:.2g}",
            soft_wrap=True,
        )
    for row in parties:
        console.print(f"[bold]learns    [/] {row['party']}: {row['learns']}", soft_wrap=True)


def _judged(data: dict[str, Any]) -> str:
    parts = [f"{n:,} public {k} samples" for k, n in data["public"].items()]
    if data["evaluated_on"] == "public":
        return ", ".join(parts) or "nothing: there are no public data; set evaluation.on = 'sites'"
    return ", ".join(["what sites hold out", *parts])


def _print_personalise(console: Console, facts: dict[str, Any]) -> None:
    told = f"{', '.join(facts['methods'])}; {facts['rounds']} rounds of adaptation"
    console.print(f"[bold]personal  [/] {told}", soft_wrap=True)
    said = _released(facts["release"])
    for layer in facts["layers"]:
        console.print(
            f"[bold]          [/] each site tells how often {layer['channels']} of "
            f"{layer['of']} channels of layer '{layer['name']}' are silent ({said})",
            soft_wrap=True,
        )


def _released(release: dict[str, Any] | None) -> str:
    """What protects a site's vectors: an epsilon, and for which neighbours."""
    if release is None:
        return "exact: nothing protects it"
    said = f"epsilon {release['epsilon']:.3g} a site at delta {release['delta']:g} "
    said += f"({release['neighbours']})"
    if counted := release["in_total"]:
        other = "" if counted["delta"] == release["delta"] else f" at delta {counted['delta']:g}"
        said += f", {counted['epsilon']:.3g}{other} ({counted['neighbours']}) in the total"
    return said


@app.command()
def recipes(as_json: AsJson = False) -> None:
    """List the published methods that a plan can name."""
    from cupola.learn.recipes import RECIPES

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
    from cupola.data import picture
    from cupola.errors import PlanError
    from cupola.learn.build import federated_data

    whole = load(plan, settings or ()).expand()[0][1]
    path = out or Path(f"{whole.name}-sites.png")
    if path.suffix not in (".png", ".svg"):
        raise PlanError(f"--out {path}: the picture is a .png or .svg file")
    sites = federated_data(whole)
    path.write_bytes(picture(sites, "svg" if path.suffix == ".svg" else "png"))
    sizes = sites.sizes()
    typer.echo(f"{len(sites):,} sites, {int(sizes.sum()):,} samples; wrote {path}")
