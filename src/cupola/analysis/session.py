"""Carrying out a plan of any kind: a folder that always holds a run one can resume.

After every step the state is complete; now and then it is saved. A resume starts from the saved
state, cuts the files back to it, and repeats what was lost, bit for bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any

from cupola.analysis.checkpoint import Checkpoint, Log, json_line, write_sealed
from cupola.analysis.folder_lock import FULL, Aside, drop, locked, room, signals
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import Source, load
from cupola.analysis.protocol import Analysis, Progress, Sites, Watch
from cupola.analysis.run_folder import (
    CHAINS,
    FIXED,
    PLAN,
    Run,
    claim,
    free_folder,
    held_plan,
    holds,
    likeness,
    plan_file,
    resume_command,
)
from cupola.analysis.simulated import Simulated
from cupola.analysis.tracking import require_installed, tracked
from cupola.base.chain import marks, read_result, require_marks, require_tails, tails
from cupola.errors import CupolaError, DataError, PlanError
from cupola.federation.federation import Federation
from cupola.federation.ledger import Entry, Ledger
from cupola.federation.program import Program, State, drive
from cupola.federation.replay import Once, Replay


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
) -> Run:
    """Carry out a plan and fill a run folder (default: runs/NAME, numbered if taken).

    settings: 'local.lr=0.2' on top of the plan. resume: go on with a run of the same plan in
    `folder` if there is one. overwrite: replace the run that is there. progress: called after
    every round. Ctrl-C saves the state and raises KeyboardInterrupt. sites: where they are; by
    default they are simulated.

    >>> import cupola
    >>> data = {"name": "digits", "partition": {"kind": "iid", "sites": 4}}
    >>> plan = {"name": "tiny", "rounds": 2, "data": data, "model": "linear"}
    >>> run = cupola.run(plan, "runs/tiny")
    >>> run.status, run.result.final.round, run.result.bytes_up
    ('finished', 2, 21576)
    """
    sites = sites or Simulated()
    plan = load(plan, settings, elsewhere=sites.real)
    if plan.many:
        raise PlanError(
            f"plan '{plan.name}' stands for several runs (seeds or grid); "
            "use cupola.run_all(plan), or pick one of plan.expand()"
        )
    folder = free_folder(plan) if folder is None else Path(folder)
    if not sites.real:  # there, a plan is somebody else's: it does not say whom to write to
        require_installed(plan)
    with locked(folder):
        old = _begin(plan, folder, resume, overwrite, sites.real)
        if not _complete(folder):
            with nullcontext(progress) if sites.real else tracked(plan, folder, progress) as watch:
                session = _Session(plan, folder, watch, sites)
                with old or nullcontext():
                    session.execute()
                if report:
                    _report(folder, session.analysis)
    return Run(folder, plan)


def _begin(
    plan: PlanHeader, folder: Path, resume: bool, overwrite: bool, real: bool = False
) -> Aside | None:
    """Make this folder the plan's; the run that it replaces."""
    if resume and holds(folder):
        if held_plan(folder, real) != plan:
            raise PlanError(f"{folder} holds a run of another plan; choose another folder")
        return None
    old = claim(folder, plan, overwrite)
    with old or nullcontext():
        write_sealed(folder / PLAN, plan.to_toml())
    return old


def _complete(folder: Path) -> bool:
    """Whether there is nothing left to do: what is damaged of a finished run is made again."""
    try:
        return read_result(folder, whole=True).get("status") == "finished"
    except DataError:
        if not (folder / "checkpoint").exists():
            raise
        return False


def run_all(
    plan: Source,
    folder: str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: Watch | None = None,
    report: bool = True,
) -> list[Run]:
    """Like `run`, also for a plan with seeds or a grid: one sub-folder per run, and runs.json.

    A run of several that fails (a learning rate too high, say) does not keep the others from
    running; its status is 'failed'.
    """
    plan = load(plan, settings)
    if not plan.many:
        return [
            run(plan, folder, resume=resume, overwrite=overwrite, progress=progress, report=report)
        ]
    folder = free_folder(plan) if folder is None else Path(folder)
    with locked(folder):
        old = _begin(plan, folder, resume, overwrite)
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


def resume(folder: str | Path, *, progress: Watch | None = None, report: bool = True) -> list[Run]:
    """Resume whatever a folder holds: one run, or several.

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
    plan = held_plan(folder)
    return run_all(plan, folder, resume=True, progress=progress, report=report)


class _Session:
    """One process's work on one run."""

    program: Program

    def __init__(self, plan: PlanHeader, folder: Path, watch: Watch | None, sites: Sites) -> None:
        self.analysis: Analysis[Any] = analysis_of(plan)
        self.plan, self.folder, self.watch, self.sites = plan, folder, watch, sites
        self.state = State()
        self.stopping = False
        self.save_took = 0.0
        self.shown: tuple[str, int, int] | None = None
        self.fixed: dict[str, str] = {}
        self.before, self.began, self.cpu = 0.0, time.monotonic(), time.process_time()
        self.ledger = Ledger(self._book)
        self.booked: list[dict[str, Any]] = []  # since the last complete step

    def execute(self) -> None:
        """What is damaged is refused before anything is touched."""
        saved = Checkpoint.load(self.folder / "checkpoint")
        if saved:
            require_marks(self.folder, saved.files)
            require_tails(self.folder, saved.tails)
        with ExitStack() as opened:
            self.history = self._log("history", saved)
            opened.callback(self.history.close)
            self.entries = self._log("ledger", saved)
            opened.callback(self.entries.close)
            (self.folder / "result.json").unlink(missing_ok=True)
            self.free = opened.enter_context(room(self.folder))
            self._execute(saved)

    def _log(self, name: str, saved: Checkpoint | None) -> Log:
        length, tail = (saved.lengths.get(name, 0), saved.heads.get(name)) if saved else (0, None)
        return Log(self.folder / f"{name}.jsonl", length, tail)

    def _execute(self, saved: Checkpoint | None) -> None:
        host: Any = None
        try:
            host = self.sites.host(self.analysis)
            program = self.analysis.program(host)
            self.program = Once(program) if self.analysis.replayable else program
            self.analysis.prepare(self.folder, self.sites.real)
            made = self.sites.federation(self.analysis, host, self.ledger, self.folder)
            with made as reach:
                self._restore(saved, reach)
                drop(self.folder)
                self._drive(reach)
        except Exception as error:
            told = self.sites.explained(host, error)
            self._fail(told)  # unless it was told already
            told = self._said(told)
            if told is error:
                raise
            raise told from None
        finally:
            if host is not None:
                with suppress(OSError):
                    self.sites.keep_logs(host, self.folder)

    def _book(self, entry: dict[str, Any]) -> None:
        self.booked.append(entry)
        self.entries.write(entry)

    def _restore(self, saved: Checkpoint | None, reach: Federation) -> None:
        self.before = saved.seconds if saved else 0.0
        self.state = saved.state if saved else self.program.start()
        self._mark()
        part, done, _ = self.analysis.progress(self.state)
        self.first = {part: done}
        if saved:
            self.ledger.restore({"down": saved.down, "up": saved.up})
            reach.restore(saved.state.step - 1, dict(saved.sites))
            reach.confirm(self.state.step - 1)
        if self.analysis.replayable and not self.sites.real:  # real sites follow by themselves
            reach.follow(Replay(self.program, self.state))

    def _drive(self, reach: Federation) -> None:
        first = self.state.step
        self.began = self.saved_at = time.monotonic()
        try:
            with signals(self._stop):
                drive(self.program, reach, self.state, lambda state: self._after(state, reach))
                if not self.analysis.replayable:  # which could be asked again
                    self._save(reach)
                self.analysis.finish(self.state, self.folder, self._between)
        except KeyboardInterrupt:
            self._save_after(first, reach)
            self._conclude("stopped", f"interrupted after {self._reached()}")
            raise KeyboardInterrupt(
                f"stopped after {self._reached(of=True)}; "
                f"resume with `{resume_command(self.folder)}`"
            ) from None
        except Exception:
            self.free()
            self._save_after(first, reach)
            raise
        self._conclude("finished", self.analysis.ended(self.state))

    def _save_after(self, first: int, reach: Federation) -> None:
        """Save what was reached, if that can be; else the last save stays."""
        if self.state.step > first:
            with suppress(Exception):
                self._save(reach)

    def _reached(self, of: bool = False) -> str:
        part, done, whole = self.analysis.progress(self.state)
        return f"{part} {done}" + (f" of {whole}" if of and whole else "")

    def _fail(self, error: Exception) -> None:
        """Leave the reason behind, whatever it was; once."""
        if (self.folder / "result.json").exists():
            return
        self.free()
        kind = "" if isinstance(error, CupolaError) else f"{type(error).__name__}: "
        reason = kind + str(error)
        try:
            self._conclude("failed", reason)
        except Exception:  # of the summary there is only this to say
            short = {"status": "failed", "reason": reason, "name": self.plan.name}
            with suppress(OSError):
                write_sealed(self.folder / "result.json", json_line(short, indent=2))

    def _said(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno in FULL:
            way_out = f"make room, then resume with `{resume_command(self.folder)}`"
            return DataError(f"{self.folder}: the disk is full ({error.strerror}); {way_out}")
        return error

    def _between(self, progress: Progress) -> None:
        """What `finish` calls now and then."""
        if self.stopping:
            raise KeyboardInterrupt
        if self.watch is not None:
            self.watch(progress)

    def _after(self, state: State, reach: Federation) -> None:
        """A step is complete: write its record down, and save if it is time."""
        record = self.analysis.record(self.state, state)
        self.state = state
        self.booked.clear()
        if record is not None:
            record |= {
                "bytes_down": self.ledger.bytes_down,
                "bytes_up": self.ledger.bytes_up,
                "seconds": self.seconds(),
            }
            self.history.write(record)
        self._mark()
        if self.stopping:
            raise KeyboardInterrupt
        # Writing may take at most a tenth of the time, unless every step is to be saved. Sites with
        # processes of their own answer a step once: what draws may not be asked again.
        once = self.sites.real or self.plan.engine.kind == "processes"
        seconds = 0 if once and not self.analysis.replayable else self.plan.checkpoint_seconds
        wait = seconds and max(seconds, 10 * self.save_took)
        if time.monotonic() - self.saved_at >= wait:
            self._save(reach)
        if self.watch is not None:
            self._show(self.watch, record)

    def _show(self, watch: Watch, record: dict[str, Any] | None) -> None:
        now = self.analysis.progress(self.state)
        if record is None and now == self.shown:
            return
        self.shown = now
        part, done, whole = now
        rate = (done - self.first.setdefault(part, 0)) / max(time.monotonic() - self.began, 1e-9)
        left = (whole - done) / rate if rate > 0 else float("inf")
        watch(Progress(part, done, whole, record or {}, rate, left, self.folder))

    def _mark(self) -> None:
        """How far the run's files are at a complete step."""
        self.lengths = {"history": self.history.length, "ledger": self.entries.length}
        self.heads = {"history": self.history.tail, "ledger": self.entries.tail}

    def _save(self, reach: Federation) -> None:
        """Save the last complete step; what was booked after it does not belong to it."""
        start = time.monotonic()
        self.history.sync()
        self.entries.sync()
        kept = Ledger()
        kept.restore(self.ledger.export())
        for entry in (Entry(**e) for e in self.booked):
            for site in (*entry.sites, *entry.failed):
                kept.down[site] -= entry.bytes_down
            for site, size in zip(entry.sites, entry.up()):
                kept.up[site] -= size
        sites = reach.export(self.state.step - 1)
        facts = (kept.down, kept.up, self.lengths, self.seconds())
        if not self.fixed:
            self.fixed = marks(self.folder, (*FIXED, *self.analysis.fixed))
        around = (self.fixed, tails(self.folder, CHAINS), self.heads, likeness(self.plan))
        Checkpoint(self.state, sites, *facts, *around).save(self.folder / "checkpoint")
        reach.confirm(self.state.step - 1)
        self.saved_at = time.monotonic()
        self.save_took = self.saved_at - start

    def seconds(self) -> float:
        """Time spent on this run, in all sessions up to now."""
        return round(self.before + time.monotonic() - self.began, 6)

    def _stop(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        if sys.stderr.isatty():
            print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)

    def _conclude(self, status: str, reason: str | None) -> None:
        analysis, real = self.analysis, self.sites.real
        summary = {
            "status": status,
            "reason": reason,
            "name": self.plan.name,
            "kind": self.plan.kind,
            "seed": self.plan.seed,
            "bytes_down": self.ledger.bytes_down,
            "bytes_up": self.ledger.bytes_up,
            "seconds": self.seconds(),
            "cpu_seconds": round(time.process_time() - self.cpu, 3),
            "simulated": not real,
            **analysis.summary(self.state, self.folder, real),
        }
        kept: tuple[str, ...] = (PLAN, *FIXED, *analysis.fixed)
        if status == "finished":
            kept = (*kept, *CHAINS, "history.jsonl", "ledger.jsonl", *analysis.files)
        summary["checksums"] = marks(self.folder, kept)
        write_sealed(self.folder / "result.json", json_line(summary, indent=2))


def _report(folder: Path, analysis: Analysis[Any] | None = None) -> None:
    """analysis: what has just filled the folder, and may have results at hand."""
    from cupola import report

    report.write(folder, analysis)
