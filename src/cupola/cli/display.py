"""What people see while and after a run: a progress bar on stderr, the result on stdout."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table

from cupola.base import formatting
from cupola.learn.privacy_section import cell, epsilon, heading

if TYPE_CHECKING:
    from cupola.analysis.run_folder import Run
    from cupola.analysis.session import Progress

LOG_EVERY = 30.0  # seconds between lines where stderr is no terminal


@contextmanager
def showing(silent: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on a terminal, else a line when a part begins."""
    console = Console(stderr=True)
    if silent:
        yield None
        return
    if not console.is_terminal:

        def tell(what: str, done: int, whole: int) -> None:
            if done == 1:
                console.print(f"{what}: {whole:,}", highlight=False)

        yield tell
        return
    columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn())
    with Bar(*columns, TimeRemainingColumn(), console=console) as bar:
        tasks: dict[str, Any] = {}

        def show(what: str, done: int, whole: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=whole)
            bar.update(tasks[what], completed=done)

        yield show


@contextmanager
def watching(quiet: bool, log: bool = True) -> Iterator[Callable[[Progress], None] | None]:
    """A progress callback: a bar on a terminal, a line now and then if stderr is a log, or none."""
    console = Console(stderr=True)
    if quiet:
        yield None
        return
    if not console.is_terminal:
        yield _Log() if log else None
        return
    bar = Bar(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[pace]}"),
        console=console,
    )
    with bar:
        task = None
        folder = None

        def show(progress: Progress) -> None:
            nonlocal task, folder
            if folder != progress.folder:
                folder = progress.folder
                task = bar.add_task(folder.name, total=progress.rounds, pace="")
            assert task is not None
            bar.update(task, completed=progress.round, total=progress.rounds, pace=pace(progress))

        yield show


class _Log:
    """A line every half minute, for logs."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        if time.monotonic() - self.last < LOG_EVERY:
            return
        self.last = time.monotonic()
        done = f"round {progress.round} of {progress.rounds}"
        Console(stderr=True).print(f"{progress.folder.name}: {done}, {pace(progress)}")


def pace(progress: Progress) -> str:
    """'12.3 rounds/s, accuracy 91.2 %, 8 s left'."""
    parts = [f"{progress.rounds_per_second:.3g} rounds/s"]
    if headline := main_metric(progress.record):
        parts.append(headline)
    parts.append(f"{formatting.duration(progress.seconds_left)} left")
    return ", ".join(parts)


def main_metric(record: dict[str, Any]) -> str:
    """The first metric worth a glance in a record."""
    for where in ("test", "sites_test", "validation", "sites_validation"):
        for name in ("accuracy", "rmse", "loss"):
            if (value := record.get(where, {}).get(name)) is not None:
                return f"{name} {formatting.metric(name, value)}"
    return ""


def show_runs(runs: list[Run], quiet: bool) -> None:
    """The result of one run or several."""
    console = Console()
    if len(runs) > 1:
        if any(run.history for run in runs):
            console.print(comparison([str(run.folder) for run in runs], None, ""))
        console.print(f"[dim]everything is in[/] {runs[0].folder.parent}")
        return
    run, result = runs[0], runs[0].result
    final = result.get("final") or {}
    judged = main_metric(final) or "not evaluated (`cupola check` tells why)"
    line = f"{result['rounds']} rounds, {judged}"
    sent = result["bytes_down"] + result["bytes_up"]
    line += f", {formatting.size(sent)} sent, {formatting.duration(result['seconds'])}"
    console.print(line, highlight=False)
    if spent := result.get("privacy"):
        unit = "a site" if spent["unit"] == "site" else "an example, at the site that spent most"
        console.print(
            f"epsilon {epsilon(spent['epsilon'])} at delta {spent['delta']:g} "
            f"({spent['neighbours']}) for {unit} ({spent['status']})",
            highlight=False,
        )
    if result.get("reason"):
        console.print(f"stopped early: {result['reason']}", highlight=False)
    if result.get("personal"):
        console.print(methods(result["personal"]))
    if result.get("twin"):
        console.print(f"centralised twin: {main_metric(result['twin'].get('final') or {})}")
    failures = final.get("failed") or {}
    for code, n in failures.items():
        console.print(f"[yellow]{formatting.count(n, 'site')} without answer:[/] {code}")
    if not quiet:
        console.print(f"[dim]report:[/] {run.folder / 'report.html'}", soft_wrap=True)


def methods(personal: dict[str, Any]) -> Table:
    """Personalisation: every method's mean over sites, and who gained or lost by it."""
    from cupola.personalize.personal_section import METHODS

    name, groups = personal["metric"], personal.get("groups") or {}
    said = "personalisation"
    if groups:
        said += f": {formatting.count(groups['number'], 'group')}"
    if groups.get("ari") is not None:
        said += f", adjusted Rand index {groups['ari']:.3g}"
    table = Table(title=said, title_justify="left")
    table.add_column("")
    for column in (f"{name}, mean over sites", "worst tenth", "gained", "lost"):
        table.add_column(column, justify="right")
    for method, facts in personal["methods"].items():
        table.add_row(
            METHODS.get(method, method),
            formatting.metric(name, facts.get("test")),
            formatting.metric(name, facts.get("worst")),
            formatting.number(facts.get("better")),
            formatting.number(facts.get("worse")),
        )
    return table


def comparison(
    folders: list[str], target: float | None, title: str, labels: Sequence[str] = ()
) -> Table:
    """Accuracy, bytes and time of runs, and what the target cost them."""
    from cupola import report

    rows = report.table(folders, target=target)
    metric = rows[0]["metric"]
    goal = formatting.goal(metric, rows[0]["target"])
    table = Table(title=title, title_justify="left")
    table.add_column("")
    private = any(row["epsilon"] is not None for row in rows)
    costs = ["bytes", f"rounds to {goal}", f"bytes to {goal}", "time"]
    for column in (metric, *([heading(rows)] if private else []), *costs):
        table.add_column(column, justify="right")
    for i, row in enumerate(rows):
        table.add_row(
            labels[i] if len(labels) == len(rows) else row["label"],
            formatting.metric(metric, row[metric], row["spread"]),
            *([_epsilon(row, heading(rows))] if private else []),
            formatting.size(row["bytes"]),
            formatting.number(row["rounds_to_target"]),
            formatting.size(row["bytes_to_target"]),
            formatting.duration(row["seconds"]),
        )
    return table


def _epsilon(row: dict[str, Any], column: str) -> str:
    return "–" if row["epsilon"] is None else cell(row, column)
