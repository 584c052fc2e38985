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
from cupola.base.formatting import main_metric

if TYPE_CHECKING:
    from pathlib import Path

    from cupola.analysis.run_folder import Run
    from cupola.analysis.run_progress import Progress

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
    columns = ("[bold]{task.description}", "{task.fields[done]}", "{task.fields[pace]}")
    said, of, at = (TextColumn(column) for column in columns)
    bar = Bar(said, BarColumn(bar_width=24), of, at, console=console)
    with bar:
        tasks: dict[Path, Any] = {}  # a bar for each run, whatever it is about

        def show(progress: Progress) -> None:
            if progress.folder not in tasks:
                tasks[progress.folder] = bar.add_task("", total=None, done="", pace="")
            bar.update(
                tasks[progress.folder],
                description=named(progress),
                completed=progress.done,
                total=progress.whole or None,  # not known: the bar only moves
                done=done(progress),
                pace=pace(progress),
            )

        yield show


class _Log:
    """A line every half minute, and when a part of an analysis begins, for logs."""

    def __init__(self) -> None:
        self.last, self.part = time.monotonic(), ""

    def __call__(self, progress: Progress) -> None:
        console = Console(stderr=True, highlight=False)
        part = progress.said or progress.part
        new = part not in ("round", self.part)
        self.part = part
        if not new and time.monotonic() - self.last < LOG_EVERY:
            return
        self.last = time.monotonic()
        what = f"{progress.part} " if progress.part == "round" else ""
        told = ", ".join(part for part in (what + done(progress), pace(progress)) if part)
        console.print(f"{named(progress)}: {told}" if told else named(progress), soft_wrap=True)


def named(progress: Progress) -> str:
    """'traits, step 5 of 6: testing variants'; of rounds, the run alone."""
    at, steps = progress.step
    if progress.part == "round":
        return progress.folder.name
    step = f", step {at} of {steps}" if steps > 1 else ""
    return f"{progress.folder.name}{step}: {progress.said or progress.part}"


def done(progress: Progress) -> str:
    """'8,192 of 14,384'."""
    return f"{progress.done:,} of {progress.whole:,}" if progress.whole else ""


def pace(progress: Progress) -> str:
    """'12.3 rounds/s, accuracy 91.2 %, 8 s left'; what is not known yet is left out."""
    parts = [f"{progress.rate:.3g} {progress.part}s/s"] if progress.part == "round" else []
    if headline := main_metric(progress.record):
        parts.append(headline)
    if formatting.finite(progress.seconds_left) and progress.done < progress.whole:
        here = "" if progress.last_part else " in this step"
        parts.append(f"about {formatting.roughly(progress.seconds_left)} left{here}")
    return ", ".join(parts)


def show_runs(runs: list[Run], quiet: bool) -> None:
    """The result of one run or several."""
    console = Console(highlight=False)
    if len(runs) > 1:
        if any(run.history for run in runs):
            console.print(comparison([str(run.folder) for run in runs], None, ""))
        console.print(f"[dim]everything is in[/] {runs[0].folder.parent}")
        return
    for line in runs[0].analysis.show(runs[0], quiet):
        console.print(line, soft_wrap=True)


def comparison(
    folders: list[str], target: float | None, title: str, labels: Sequence[str] = ()
) -> Table:
    """Accuracy, bytes and time of runs, and what the target cost them."""
    from cupola import report
    from cupola.training.privacy_section import heading  # which loads torch

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
    from cupola.training.privacy_section import cell

    return "–" if row["epsilon"] is None else cell(row, column)
