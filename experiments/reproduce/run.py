"""Running the plans behind a published table, resumably."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola import Plan, report, run
from cupola.analysis.session import Watch
from cupola.base.files import write_atomically
from cupola.errors import FederationError
from reproduce.measure import measure
from reproduce.outcome import Values, markdown, results, scaled
from reproduce.section import table_section
from reproduce.tables import Cell, Table


@dataclass(frozen=True)
class Job:
    """One run: a cell at one seed."""

    cell: Cell
    seed: int
    plan: Plan
    folder: Path

    @property
    def label(self) -> str:
        return f"{self.cell.row} · {self.cell.column} · seed {self.seed}"


def seeds_of(table: Table, count: int | None = None) -> tuple[int, ...]:
    """The table's seeds, or the first `count` of them and of the next free numbers."""
    if count is None:
        return table.seeds
    more = (s for s in range(1, count + len(table.seeds) + 1) if s not in table.seeds)
    return (*table.seeds, *more)[:count]


def jobs(table: Table, folder: str | Path, seeds: Sequence[int]) -> list[Job]:
    """All runs, seed by seed, so that a whole table stands early. Plans are checked here."""
    folder = Path(folder)
    cells = table.cells()
    own = dict(zip([(c.plan, c.settings) for c in cells][::-1], _folder_names(cells)[::-1]))
    names = [own[cell.plan, cell.settings] for cell in cells]  # cells may share their runs
    return [
        Job(cell, seed, table.plan_of(cell, seed), folder / f"{name}-seed-{seed}")
        for seed in seeds
        for cell, name in zip(cells, names)
    ]


def distinct(work: Sequence[Job]) -> list[Job]:
    """One job for every run: cells that measure the same run in other ways share it."""
    return list({job.folder: job for job in reversed(work)}.values())[::-1]


def reproduce(
    table: Table,
    folder: str | Path,
    seeds: Sequence[int] | None = None,
    progress: Watch | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Run what is missing, then write results.json, table.md and report.html; returns results."""
    folder = Path(folder)
    seeds = tuple(seeds or table.seeds)
    work = jobs(table, folder, seeds)
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        {
            "label": job.label,
            "folder": job.folder.name,
            "group": f"{job.cell.row} · {job.cell.column}",
            "settings": {"seed": job.seed},
        }
        for job in distinct(work)
    ]
    write_atomically(folder / "runs.json", json.dumps(entries, indent=2))
    values: dict[str, Values] = {}
    for i, job in enumerate(work):
        tell(f"{job.label} (run {i + 1} of {len(work)})")
        done = None
        try:
            run(job.plan, job.folder, resume=True, progress=progress)
            done = report.open_run(job.folder)
        except FederationError as error:  # a run that diverges is a result, not an accident
            tell(f"{job.label}: {error}")
        for what in table.measures:
            own = job.cell.measure if what == table.measure and job.cell.measure else what
            got = None if done is None else measure(done, own, table.target)
            cell = values.setdefault(what, {}).setdefault((job.cell.row, job.cell.column), {})
            cell[job.seed] = scaled(got, table.factor(own))
    found = results(table, values, seeds)
    write_atomically(folder / "results.json", json.dumps(found, indent=2))
    write_atomically(folder / "table.md", markdown(found))
    draw(folder)
    return found


def draw(folder: str | Path) -> Path:
    """The report of a reproduced table."""
    folder = Path(folder)
    found = json.loads((folder / "results.json").read_text("utf-8"))
    extra = [table_section(found)]
    return report.compare(
        [folder], folder / "report.html", name=found["caption"], extra=extra, crown=False
    )


def _folder_names(cells: Sequence[Cell]) -> list[str]:
    """Readable and different names, one per cell."""
    names: list[str] = []
    for cell in cells:
        parts = (re.sub(r"[^A-Za-z0-9.]+", "-", p).strip("-.") for p in (cell.row, cell.column))
        name = "-".join(p for p in parts if p)[:60].lower() or "cell"
        count = sum(n == name or n.startswith(f"{name}~") for n in names)
        names.append(f"{name}~{count + 1}" if count else name)
    return names
