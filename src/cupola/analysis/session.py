"""Carrying out a plan of any kind: a folder that always holds a run one can resume.

Here are the functions that people call; `carry_out` does the work on one run.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Self, Unpack

from cupola.analysis.carry_out import Session
from cupola.analysis.checkpoint import json_line, write_sealed
from cupola.analysis.folder_lock import drop, locked
from cupola.analysis.header import PlanHeader
from cupola.analysis.plan_file import Objects, Source, load
from cupola.analysis.protocol import Analysis, Sites, Watch
from cupola.analysis.run_folder import (
    PLAN,
    Run,
    begin,
    free_folder,
    held_plan,
    is_complete,
    plan_file,
    with_same_objects,
)
from cupola.analysis.run_progress import Progress
from cupola.analysis.simulated import Simulated
from cupola.analysis.tracking import require_installed, tracked
from cupola.errors import CupolaError, PlanError


def run(
    plan: Source,
    folder: str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: Watch | None = None,
    report: bool = True,
    sites: Sites | None = None,
    **objects: Unpack[Objects],
) -> Run:
    """Carry out a plan and fill a run folder (default: runs/NAME, numbered if taken).

    settings: 'local.lr=0.2' on top of the plan. resume: go on with a run of the same plan in
    `folder` if there is one. overwrite: replace the run that is there. progress: called after
    every round. Ctrl-C saves the state and raises KeyboardInterrupt. sites: where they are; by
    default they are simulated. model, data, loss, method, metrics: objects in the place of the
    plan's names (see `Objects`).

    >>> import cupola
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> plan = {"name": "tiny", "rounds": 2, "data": data, "model": "linear"}
    >>> run = cupola.run(plan, "runs/tiny")
    >>> run.status, run.result.final.round, run.result.bytes_up
    ('finished', 2, 21576)

    Objects will do where a plan has names:

    >>> import numpy as np
    >>> from torch import nn
    >>> x, y = np.random.rand(200, 8), np.arange(200) % 2
    >>> own = {"name": "own", "rounds": 1, "data": {"partition": {"kind": "iid", "sites": 4}}}
    >>> run = cupola.run(own, "runs/own", model=nn.Linear(8, 2), data=(x, y))
    >>> run.plan.model.name.partition("#")[0], run.result.sites
    ('object:Linear', 4)
    """
    sites = sites or Simulated()
    plan = load(plan, settings, elsewhere=sites.real, **objects)
    rounds = _rounds(plan, folder, resume, overwrite, progress, report, sites)
    for _ in rounds:
        pass
    return rounds.run


def iterate(
    plan: Source,
    folder: str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    report: bool = True,
    **objects: Unpack[Objects],
) -> Rounds:
    """Like `run`, round by round: a loop in the place of callbacks.

    Leaving the loop, by `break` or by an exception, saves the state: the folder can be resumed.

    >>> import cupola
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> plan = {"name": "tiny", "rounds": 9, "data": data, "model": "linear"}
    >>> for progress in cupola.iterate(plan, "runs/looked at"):
    ...     if progress.record["test"]["accuracy"] > 0.8:
    ...         break
    >>> run = cupola.Run.open("runs/looked at")
    >>> run.status, len(run.history) == progress.round
    ('stopped', True)
    """
    plan = load(plan, settings, **objects)
    return _rounds(plan, folder, resume, overwrite, None, report, Simulated())


class Rounds(Iterator[Progress]):
    """The rounds of a run while it is carried out; `run` is what they fill.

    The folder is held until the last round, or until `close` (or the end of a `with`): a `for` over
    `cupola.iterate(...)` itself closes when it is left.
    """

    def __init__(self, run: Run, steps: Generator[Progress]) -> None:
        self.run, self._steps = run, steps

    def __next__(self) -> Progress:
        return next(self._steps)

    def close(self) -> None:
        """Save the state, and let go of the folder."""
        self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _rounds(
    plan: PlanHeader,
    folder: str | Path | None,
    resume: bool,
    overwrite: bool,
    watch: Watch | None,
    report: bool,
    sites: Sites,
) -> Rounds:
    if plan.many:
        raise PlanError(
            f"plan '{plan.name}' stands for several runs (seeds, a grid or traits); "
            "use cupola.run_all(plan), or pick one of plan.expand()"
        )
    place = free_folder(plan) if folder is None else Path(folder)
    if not sites.real:  # there, a plan is somebody else's: it does not say whom to write to
        require_installed(plan)

    def steps() -> Generator[Progress]:
        with locked(place):
            old = begin(plan, place, resume, overwrite, sites.real)
            if not is_complete(place):
                with nullcontext(watch) if sites.real else tracked(plan, place, watch) as tell:
                    session = Session(plan, place, tell, sites)
                    with old or nullcontext():
                        yield from session.execute()
                    if report:
                        _report(place, session.analysis)

    return Rounds(Run(place, plan), steps())


def run_all(
    plan: Source,
    folder: str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: Watch | None = None,
    report: bool = True,
    **objects: Unpack[Objects],
) -> list[Run]:
    """Like `run`, also for a plan with seeds or a grid: one sub-folder per run, and runs.json.

    A run of several that fails (a learning rate too high, say) does not keep the others from
    running; its status is 'failed'.
    """
    plan = load(plan, settings, **objects)
    if not plan.many:
        return [
            run(plan, folder, resume=resume, overwrite=overwrite, progress=progress, report=report)
        ]
    folder = free_folder(plan) if folder is None else Path(folder)
    with locked(folder):
        old = begin(plan, folder, resume, overwrite)
        entries = [
            {"label": label, "folder": label, "settings": chosen}
            for label, chosen in plan.settings()
        ]
        write_sealed(folder / "runs.json", json_line(entries, indent=2))
        runs = []
        for label, one in plan.expand():
            runs.append(Run(folder / label, one))
            try:
                run(one, folder / label, resume=True, progress=progress, report=report)
            except CupolaError:
                asked = folder / label / "ledger.jsonl"
                if old is not None and not (asked.exists() and asked.stat().st_size):
                    old.back()
                    raise
                if runs[-1].status != "failed":  # it did not even begin
                    raise
            drop(folder)
            old = None
        if report:
            _report(folder)
    return runs


def resume(
    folder: str | Path,
    *,
    progress: Watch | None = None,
    report: bool = True,
    **objects: Unpack[Objects],
) -> list[Run]:
    """Resume whatever a folder holds: one run, or several. What was begun with objects needs the
    same ones again: other code or other data are refused.

    >>> import cupola
    >>> from contextlib import suppress
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> plan = {"name": "tiny", "rounds": 3, "data": data, "model": "linear"}
    >>> def interrupt(progress):
    ...     raise KeyboardInterrupt
    >>> with suppress(KeyboardInterrupt):
    ...     cupola.run(plan, "runs/stopped", progress=interrupt)
    >>> cupola.Run.open("runs/stopped").status
    'stopped'
    >>> [run] = cupola.resume("runs/stopped")
    >>> run.status, [record["round"] for record in run.history]
    ('finished', [1, 2, 3])
    """
    folder = Path(folder)
    if plan_file(folder) is None:
        raise PlanError(
            f"{folder} holds no run to resume (there is no {PLAN}); restore it from a copy, "
            "or run the plan again with --overwrite"
        )
    plan = with_same_objects(held_plan(folder), folder, objects)
    return run_all(plan, folder, resume=True, progress=progress, report=report)


def _report(folder: Path, analysis: Analysis[Any] | None = None) -> None:
    """analysis: what has just filled the folder, and may have results at hand."""
    from cupola import report

    report.write(folder, analysis)
