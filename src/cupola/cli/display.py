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

    from cupola.analysis.protocol import Progress
    from cupola.analysis.run_folder import Run

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
        shown: tuple[Path, str] | None = None

        def show(progress: Progress) -> None:
            nonlocal task, shown
            now = (progress.folder, progress.part)
            if shown != now:
                shown = now
                named = progress.folder.name if progress.part == "round" else progress.part
                task = bar.add_task(named, total=progress.whole, pace="")
            assert task is not None
            bar.update(task, completed=progress.done, total=progress.whole, pace=pace(progress))

        yield show


class _Log:
    """A line every half minute, and when a part of an analysis begins, for logs."""

    def __init__(self) -> None:
        self.last = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        console = Console(stderr=True, highlight=False)
        if progress.part != "round" and progress.done == 1 and progress.whole:
            console.print(f"{progress.part}: {progress.whole:,}")
        if time.monotonic() - self.last < LOG_EVERY:
            return
        self.last = time.monotonic()
        done = f"{progress.part} {progress.done} of {progress.whole}"
        console.print(f"{progress.folder.name}: {done}, {pace(progress)}")


def pace(progress: Progress) -> str:
    """'12.3 rounds/s, accuracy 91.2 %, 8 s left'."""
    parts = [f"{progress.rate:.3g} {progress.part}s/s"] if progress.part == "round" else []
    if headline := main_metric(progress.record):
        parts.append(headline)
    parts.append(f"{formatting.duration(progress.seconds_left)} left")
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
