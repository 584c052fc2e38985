"""Carrying out a plan: a folder that always holds a run one can go on with.

After every step the state is complete; now and then it is saved. A resume starts from the saved
state, cuts the files back to it, and repeats what was lost, bit for bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.numpy import save as to_safetensors

from cupola.base.chain import marks, read_result, require_marks, require_tails, tails
from cupola.base.files import write_atomically
from cupola.errors import CupolaError, DataError, PlanError
from cupola.federation import Entry, Federation, Ledger, Program, State, drive
from cupola.learn import Training, TrainingHost
from cupola.learn.training import without_matrices
from cupola.personalize import Personalisation
from cupola.plan import compose
from cupola.plan.checkpoint import Checkpoint, Log, json_line, write_sealed
from cupola.plan.folder import (
    CHAINS,
    FINISHED,
    FIXED,
    Run,
    claim,
    free_folder,
    held_plan,
    holds,
    likeness,
    locked,
)
from cupola.plan.forecast import forecast
from cupola.plan.holding import FULL, Aside, drop, room, signals
from cupola.plan.load import load
from cupola.plan.personal import write_group_models, write_personal
from cupola.plan.place import Place, Simulated
from cupola.plan.plan import Plan
from cupola.plan.summary import partition_table, result
from cupola.plan.twin import run_twin

Source = str | Path | Mapping[str, Any] | Plan


@dataclass(frozen=True)
class Progress:
    """A finished round: its record, and the pace of this session."""

    round: int
    rounds: int
    record: dict[str, Any]
    rounds_per_second: float
    seconds_left: float
    folder: Path


Watch = Callable[[Progress], None]


def run(
    plan: Source,
    folder: str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: Watch | None = None,
    report: bool = True,
    place: Place | None = None,
) -> Run:
    """Carry out a plan and fill a run folder (default: runs/NAME, numbered if taken).

    settings: 'local.lr=0.2' on top of the plan. resume: go on with a run of the same plan in
    `folder` if there is one. overwrite: replace the run that is there. progress: called after
    every round. Ctrl-C saves the state and raises KeyboardInterrupt. place: where the sites are;
    by default they are simulated.
    """
    plan = load(plan, settings)
    if plan.many:
        raise PlanError(
            f"plan '{plan.name}' stands for several runs (seeds or grid); "
            "use cupola.run_all(plan), or pick one of plan.expand()"
        )
    folder = free_folder(plan) if folder is None else Path(folder)
    with locked(folder):
        old = _begin(plan, folder, resume, overwrite)
        if not _complete(folder):
            with old or nullcontext():
                _Session(plan, folder, progress, place or Simulated()).execute()
            if report:
                _report(folder)
    return Run(folder, plan)


def _begin(plan: Plan, folder: Path, resume: bool, overwrite: bool) -> Aside | None:
    """Make this folder the plan's; the run that it replaces."""
    if resume and holds(folder):
        if held_plan(folder) != plan:
            raise PlanError(f"{folder} holds a run of another plan; choose another folder")
        return None
    old = claim(folder, plan, overwrite)
    with old or nullcontext():
        write_sealed(folder / "plan.toml", plan.to_toml())
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
    """Go on with whatever a folder holds: one run, or several."""
    folder = Path(folder)
    if not (folder / "plan.toml").exists():
        raise PlanError(
            f"{folder} holds no run to go on with (there is no plan.toml); restore it from a copy, "
            "or run the plan again with --overwrite"
        )
    plan = held_plan(folder)
    return run_all(plan, folder, resume=True, progress=progress, report=report)


class _Session:
    """One process's work on one run. whole: its training, and what follows."""

    whole: Program

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        watch: Watch | None,
        place: Place,
    ) -> None:
        self.plan, self.folder, self.watch, self.place = plan, folder, watch, place
        self.state = State()
        self.stopping = False
        self.save_took = 0.0
        self.fixed: dict[str, str] = {}

    def execute(self) -> None:
        """What is damaged is refused before anything is touched."""
        saved = Checkpoint.load(self.folder / "checkpoint")
        if saved:
            require_marks(self.folder, saved.files)
            require_tails(self.folder, saved.tails)
        lengths = saved.lengths if saved else {"history": 0, "ledger": 0}
        heads = saved.heads if saved else {}
        path = self.folder / "history.jsonl"
        self.history = Log(path, lengths["history"], heads.get("history"))
        try:
            path = self.folder / "ledger.jsonl"
            self.entries = Log(path, lengths["ledger"], heads.get("ledger"))
        except BaseException:
            self.history.close()
            raise
        (self.folder / "result.json").unlink(missing_ok=True)
        try:
            with room(self.folder) as self.free:
                self._execute(saved)
        finally:
            self.history.close()
            self.entries.close()

    def _execute(self, saved: Checkpoint | None) -> None:
        try:
            host = self.place.host(self.plan)
            program = compose.training(self.plan, host)
            self.whole = compose.program(self.plan, host, program)
            if self.plan.engine.quorum and not self.place.real:
                forecast(self.plan, host, program, self.whole)  # refuses what would miss it
            table = self.folder / "partition.json"
            if not table.exists():
                write_sealed(table, json_line(partition_table(host.sites)))
            self.booked: list[dict[str, Any]] = []  # since the last complete step
            self.ledger = Ledger(self._book)
            with self.place.federation(self.plan, host, self.ledger, self.folder) as reach:
                self._restore(saved, reach)
                drop(self.folder)
                self._drive(host, program, reach)
        except Exception as error:
            self._fail(error, {})  # unless it was told already
            raise self._said(error) from error

    def _book(self, entry: dict[str, Any]) -> None:
        self.booked.append(entry)
        self.entries.write(entry)

    def _restore(self, saved: Checkpoint | None, reach: Federation) -> None:
        self.before = saved.seconds if saved else 0.0
        self.state = saved.state if saved else self.whole.start()
        self._mark()
        self.first = self.state.values["round"]
        if saved:
            self.ledger.restore({"down": saved.down, "up": saved.up})
            reach.restore(saved.state.step - 1, dict(saved.sites))
            reach.confirm(self.state.step - 1)

    def _drive(self, host: TrainingHost, program: Training, reach: Federation) -> None:
        began = self.state.step
        self.began = self.saved_at = time.monotonic()
        facts: dict[str, Any] = {"host": host, "model": program.space.module, "program": program}
        try:
            with signals(self._stop):
                drive(self.whole, reach, self.state, lambda state: self._after(state, reach))
                self._save(reach)
                if self.plan.twin:
                    facts["twin"] = self._twin(host, program)
        except KeyboardInterrupt:
            round = self.state.values["round"]
            self._conclude("stopped", f"interrupted after round {round}", **facts)
            raise KeyboardInterrupt(
                f"stopped after round {round} of {self.plan.rounds}; "
                f"go on with `{Run(self.folder, self.plan).resume}`"
            ) from None
        except Exception as error:
            self.free()
            if self.state.step > began:
                with suppress(Exception):  # else the last one that could be saved stays
                    self._save(reach)
            self._fail(error, facts)
            raise
        arrays = program.model(self.state)
        write_atomically(self.folder / "model.safetensors", to_safetensors(arrays))
        if isinstance(self.whole, Personalisation):
            write_group_models(self.state, self.folder)
        self._conclude("finished", self.state.values["stopped"], **facts)

    def _fail(self, error: Exception, facts: dict[str, Any]) -> None:
        """Leave the reason behind, whatever it was; once."""
        if (self.folder / "result.json").exists():
            return
        self.free()
        kind = "" if isinstance(error, CupolaError) else f"{type(error).__name__}: "
        reason = kind + str(error)
        try:
            self._conclude("failed", reason, **facts)
        except Exception:  # of the summary there is only this to say
            short = {"status": "failed", "reason": reason, "name": self.plan.name}
            with suppress(OSError):
                write_sealed(self.folder / "result.json", json_line(short, indent=2))

    def _said(self, error: Exception) -> Exception:
        if isinstance(error, OSError) and error.errno in FULL:
            way_out = f"make room, and go on with `{Run(self.folder, self.plan).resume}`"
            return DataError(f"{self.folder}: the disk is full ({error.strerror}); {way_out}")
        return error

    def _twin(self, host: TrainingHost, program: Training) -> dict[str, Any]:
        def between(record: dict[str, Any]) -> None:
            if self.stopping:
                raise KeyboardInterrupt
            if self.watch is not None:
                pace = record["round"] / max(record["seconds"], 1e-9)
                left = (rounds - record["round"]) / pace
                self.watch(Progress(record["round"], rounds, record, pace, left, folder))

        rounds = program.training_round(self.state.values["round"])
        folder = self.folder / "twin"
        ours = program.model(self.state)
        return run_twin(self.plan, folder, program, host, rounds, ours, between)

    def _after(self, state: State, reach: Federation) -> None:
        """A step is complete: write its round down, and save if it is time."""
        new = state.values["round"] > self.state.values["round"]
        self.state = state
        self.booked.clear()
        if new:
            record = {
                **without_matrices(state.values["last"]),
                "bytes_down": self.ledger.bytes_down,
                "bytes_up": self.ledger.bytes_up,
                "seconds": self.seconds(),
            }
            self.history.write(record)
        self._mark()
        if self.stopping:
            self._save(reach)
            raise KeyboardInterrupt
        # Writing may take at most a tenth of the time, unless every step is to be saved.
        # Sites with processes of their own answer a step once, so that none may be repeated.
        apart = self.place.real or self.plan.engine.kind == "processes"
        seconds = 0 if apart else self.plan.checkpoint_seconds
        wait = seconds and max(seconds, 10 * self.save_took)
        if time.monotonic() - self.saved_at >= wait:
            self._save(reach)
        if new and self.watch is not None:
            self.watch(self._pace(record))
        elif self.watch is not None and "personal" in state.values:
            assert isinstance(self.whole, Personalisation)
            self.watch(self._personal_pace(self.whole))

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
            self.fixed = marks(self.folder, FIXED)
        around = (self.fixed, tails(self.folder, CHAINS), self.heads, likeness(self.plan))
        Checkpoint(self.state, sites, *facts, *around).save(self.folder / "checkpoint")
        reach.confirm(self.state.step - 1)
        self.saved_at = time.monotonic()
        self.save_took = self.saved_at - start

    def seconds(self) -> float:
        """Time spent on this run, in all sessions up to now."""
        return round(self.before + time.monotonic() - self.began, 6)

    def _pace(self, record: dict[str, Any]) -> Progress:
        done = record["round"] - self.first
        pace = done / max(time.monotonic() - self.began, 1e-9)
        left = (self.plan.rounds - record["round"]) / pace if pace else float("inf")
        return Progress(record["round"], self.plan.rounds, record, pace, left, self.folder)

    def _personal_pace(self, whole: Personalisation) -> Progress:
        """Of what follows the training: jobs, in the place of rounds."""
        done, jobs = whole.progress(self.state)
        pace = done / max(time.monotonic() - self.began, 1e-9)
        left = (jobs - done) / pace if pace else float("inf")
        return Progress(done, jobs, {}, pace, left, self.folder / "personalise")

    def _stop(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True
        if sys.stderr.isatty():
            print("\nstopping after this step; Ctrl-C again stops at once", file=sys.stderr)

    def _conclude(self, status: str, reason: str | None, **facts: Any) -> None:
        last = self.state.values.get("last") or {}
        if "personal" in self.state.values and isinstance(self.whole, Personalisation):
            facts["personal"] = write_personal(self.whole, self.state, facts["host"], self.folder)
        facts["real"] = self.place.real
        summary = result(Run(self.folder, self.plan), status, reason, last, **facts)
        if facts.get("personal"):  # which came after the last round
            sent = {"bytes_down": self.ledger.bytes_down, "bytes_up": self.ledger.bytes_up}
            summary |= {**sent, "seconds": self.seconds()}
        summary["checksums"] = marks(
            self.folder, FINISHED if status == "finished" else ("plan.toml", *FIXED)
        )
        write_sealed(self.folder / "result.json", json_line(summary, indent=2))


def _report(folder: Path) -> None:
    from cupola import report

    report.write(folder)
