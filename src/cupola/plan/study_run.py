"""Carrying out a study, wherever its cohorts are: a folder that can be gone on with."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cupola.base.chain import (
    Tail,
    damaged,
    marks,
    read_result,
    read_sealed,
    require_marks,
    require_tails,
    tails,
)
from cupola.errors import CupolaError, DataError, FederationError, PlanError
from cupola.federation import Federation, Ledger, Replay, State, drive
from cupola.federation.replay import Once
from cupola.gwas import Association, results
from cupola.gwas.compare import Table
from cupola.gwas.tables import as_table
from cupola.plan.checkpoint import Checkpoint, Log, json_line, write_sealed
from cupola.plan.holding import (
    ASIDE,
    FULL,
    HIDDEN,
    Aside,
    drop,
    locked,
    read_lines,
    remove,
    room,
    signals,
)
from cupola.plan.study import StudyPlan, load_study, without
from cupola.plan.study_place import Gathered, StudyPlace
from cupola.plan.study_result import TABLES, summary, write_tables

FILE = "study.toml"
Watch = Callable[[str, int, int], None]
#: All that a study may leave in its folder.
CONTENTS = (
    FILE, "ledger.jsonl", "checkpoint", "result.json", "report.html", "masked.id", "compensator",
    "sites", "receipts.json", *TABLES,
)  # fmt: skip
_FIXED = (FILE, "masked.id")
_CHAINS = ("compensator/compensator.jsonl",)


def run_study(
    source: str | Path | Mapping[str, Any] | StudyPlan,
    folder: str | Path | None = None,
    *,
    settings: Iterable[str] = (),
    leaving: Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    watch: Watch | None = None,
    report: bool = True,
    place: StudyPlace | None = None,
) -> dict[str, Any]:
    """Carry out a study into a folder (default: runs/NAME); its result.json.

    resume: go on with the same study in that folder. leaving: cohorts to go on without; after a
    total was told only those that agreed to it beforehand (may_leave), since the difference of two
    totals is their own numbers. place: where the cohorts are; by default all here.
    """
    place = place or Gathered()
    plan = load_study(source, settings, elsewhere=place.real)
    folder = Path("runs") / plan.name if folder is None else Path(folder)
    leaving = list(leaving)
    with locked(folder):
        if leaving:
            plan = _leave(plan, folder, leaving)
            overwrite, resume = True, False
        old = None
        if resume and (folder / FILE).exists():
            if held_study(folder, place.real) != plan:
                raise PlanError(f"{folder} holds another study; choose another folder (--out)")
        else:
            old = _claim(folder, overwrite)
            with old or nullcontext():
                write_sealed(folder / FILE, plan.to_toml())
        if resume and (done := _finished(folder)):
            return done
        with old or nullcontext():
            session = _Session(plan, folder, watch, place)
            found = session.execute()
        if report:
            from cupola.report.association import write_study

            write_study(folder, session.table)
    return found


def resume_study(folder: str | Path, **options: Any) -> dict[str, Any]:
    """Go on with the study that a folder holds."""
    folder = Path(folder)
    if not (folder / FILE).exists():
        raise PlanError(
            f"{folder} holds no study to go on with (there is no {FILE}); restore it from a copy, "
            "or run the study again with --overwrite"
        )
    return run_study(held_study(folder), folder, resume=True, **options)


def held_study(folder: Path, elsewhere: bool = False) -> StudyPlan:
    """The study in this folder, verified."""
    path = folder / FILE
    if not path.is_file():
        raise damaged(path, "it is missing")
    _, verified = read_sealed(path)
    try:
        return load_study(path, elsewhere=elsewhere)
    except PlanError as error:
        if verified:
            raise
        raise damaged(path, str(error)) from None


def _finished(folder: Path) -> dict[str, Any] | None:
    """The result of a finished study; what is damaged of it is made again from its checkpoint."""
    try:
        found = read_result(folder, whole=True)
    except DataError:
        if not (folder / "checkpoint").exists():
            raise
        return None
    return found if found.get("status") == "finished" else None


def _claim(folder: Path, overwrite: bool) -> Aside | None:
    if (folder / FILE).exists() and not overwrite:
        raise PlanError(
            f"{folder} already holds a study; go on with `cupola gwas resume {folder}`, choose "
            "another folder (--out), or replace it (--overwrite)"
        )
    known = {*CONTENTS, *HIDDEN}
    if strange := [p.name for p in folder.iterdir() if p.name not in known and p.suffix != ".part"]:
        raise PlanError(f"{folder} holds other files ({strange[0]}); choose a new folder (--out)")
    if (folder / FILE).exists() or (folder / ASIDE).exists():
        return Aside(folder, CONTENTS)
    for name in reversed(CONTENTS):
        remove(folder / name)
    return None


def _leave(plan: StudyPlan, folder: Path, leaving: list[str]) -> StudyPlan:
    left = without(plan, leaving)
    path = folder / "ledger.jsonl"
    told = path.exists() and any(
        entry["kind"] == "sum" and entry["sites"] and not entry["failed"]
        for entry in read_lines(path)
    )
    against = [c.name for c in plan.cohorts if c.name in leaving and not c.may_leave]
    if told and against:
        raise PlanError(
            f"cohort '{against[0]}' has not agreed that the study goes on without it (may_leave), "
            "and totals with it were told: the difference would be its own numbers. Wait for it "
            "and resume, or begin a new study that its totals are not compared with"
        )
    return left


@dataclass
class _Complete:
    """The last complete step, and what belongs to it."""

    state: State
    traffic: dict[str, Any]
    ledger: int
    tail: Tail


class _Session:
    """One process's work on one study."""

    def __init__(
        self,
        plan: StudyPlan,
        folder: Path,
        watch: Watch | None,
        place: StudyPlace,
    ) -> None:
        self.plan, self.folder, self.watch, self.place = plan, folder, watch, place
        self.stopping = False
        self.shown: tuple[str, int, int] | None = None
        self.table: Table | None = None
        self.cpu = time.process_time()

    def execute(self) -> dict[str, Any]:
        """What is damaged is refused before anything is touched."""
        saved = Checkpoint.load(self.folder / "checkpoint")
        if saved:
            require_marks(self.folder, saved.files)
            require_tails(self.folder, saved.tails)
        self.log = Log(
            self.folder / "ledger.jsonl",
            saved.lengths["ledger"] if saved else 0,
            saved.heads.get("ledger") if saved else None,
        )
        (self.folder / "result.json").unlink(missing_ok=True)
        with room(self.folder) as self.free:
            return self._execute(saved)

    def _execute(self, saved: Checkpoint | None) -> dict[str, Any]:
        plan, place = self.plan, self.place
        self.ledger = Ledger(self.log.write)
        self.before, self.began = saved.seconds if saved else 0.0, time.monotonic()
        try:
            listed, pinned = place.listed(plan), plan.variants_hash
            program = Association(plan.study(), len(plan.cohorts), listed, pinned=pinned)
            with (
                place.federation(plan, self.ledger, self.folder) as reach,
                signals(self._stop),
            ):
                drop(self.folder)
                return self._drive(program, reach, saved)
        except FederationError as error:
            text = place.explained(error)
            self._fail(text)
            raise DataError(text) from None
        except CupolaError as error:
            self._fail(str(error))
            raise
        except OSError as error:
            self._fail(f"{type(error).__name__}: {error}")
            if error.errno not in FULL:
                raise
            raise DataError(
                f"{self.folder}: the disk is full ({error.strerror}); make room, and go on with "
                f"`cupola gwas resume {self.folder}`"
            ) from error
        except Exception as error:
            self._fail(f"{type(error).__name__}: {error}")
            raise
        finally:
            with suppress(OSError):
                place.keep_logs(self.folder)
            self.log.close()

    def _fail(self, reason: str) -> None:
        """Leave the reason behind, whatever it was."""
        self.free()
        with suppress(OSError):
            self._conclude({"status": "failed", "reason": reason})

    def _drive(
        self, program: Association, reach: Federation, saved: Checkpoint | None
    ) -> dict[str, Any]:
        state = saved.state if saved else program.start()
        if saved:
            self.ledger.restore({"down": saved.down, "up": saved.up})
            reach.restore(state.step - 1, dict(saved.sites))
        once = Once(program)
        if not self.place.real:  # real cohorts follow the study by themselves
            reach.follow(Replay(once, state))
        self._mark(state)
        self.saved_at, self.save_took = time.monotonic(), 0.0
        try:
            state = drive(once, reach, state, lambda s: self._after(program, s, reach))
        except KeyboardInterrupt:
            self._save(reach)
            self._conclude({"status": "stopped", "reason": "interrupted"})
            raise KeyboardInterrupt(
                f"stopped; go on with `cupola gwas resume {self.folder}`"
            ) from None
        except Exception:
            self.free()
            with suppress(Exception):  # else the last one that could be saved stays
                self._save(reach)
            raise
        return self._write(program, state)

    def _mark(self, state: State) -> None:
        traffic = copy.deepcopy(self.ledger.export())
        self.complete = _Complete(state, traffic, self.log.length, self.log.tail)

    def _after(self, program: Association, state: State, reach: Federation) -> None:
        self._mark(state)
        progress = program.progress(state)
        if self.watch is not None and progress != self.shown:
            self.watch(*progress)
            self.shown = progress
        if self.stopping:
            raise KeyboardInterrupt
        wait = self.plan.checkpoint_seconds and max(
            self.plan.checkpoint_seconds, 10 * self.save_took
        )
        if time.monotonic() - self.saved_at >= wait:
            self._save(reach)

    def _save(self, reach: Federation) -> None:
        start, last = time.monotonic(), self.complete
        self.log.sync()
        if last.state.step == 0:
            return
        Checkpoint(
            last.state,
            reach.export(last.state.step - 1),
            last.traffic["down"],
            last.traffic["up"],
            {"ledger": last.ledger},
            self._seconds(),
            marks(self.folder, _FIXED),
            tails(self.folder, _CHAINS),
            {"ledger": last.tail},
        ).save(self.folder / "checkpoint")
        reach.confirm(last.state.step - 1)
        self.saved_at = time.monotonic()
        self.save_took = self.saved_at - start

    def _seconds(self) -> float:
        return round(self.before + time.monotonic() - self.began, 3)

    def _stop(self) -> None:
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def _conclude(self, facts: dict[str, Any]) -> dict[str, Any]:
        whole = {
            **facts,
            "name": self.plan.name,
            "test": self.plan.test,
            "cohorts": [cohort.name for cohort in self.plan.cohorts],
            "bytes_down": self.ledger.bytes_down,
            "bytes_up": self.ledger.bytes_up,
            "seconds": self._seconds(),
            "cpu_seconds": round(time.process_time() - self.cpu, 3),
            "simulated": not self.place.real,
        }
        kept = (FILE, *_CHAINS, "masked.id", "ledger.jsonl", *facts.get("files", ()))
        done = facts["status"] == "finished"
        whole["checksums"] = marks(self.folder, kept if done else _FIXED)
        write_sealed(self.folder / "result.json", json_line(whole, indent=2))
        return whole

    def _write(self, program: Association, state: State) -> dict[str, Any]:
        """Tables first, each whole or not at all, then result.json, which says that they are."""
        found = results(program, state)
        self.table = as_table(found, self.plan.test, self.plan.confidence)
        written = write_tables(self.plan, self.folder, program, state, found)
        shared = [
            [self.plan.cohorts[a].name, self.plan.cohorts[b].name, n]
            for a, b, n in state.values.get("shared_people", [])
        ]
        facts = {"status": "finished", "reason": None, **summary(self.plan, program, state, found)}
        facts["proposed"] = (
            [[cohort.name, n] for cohort, n in zip(self.plan.cohorts, state.values["proposed"])]
            if self.plan.variants is None
            else []
        )
        return self._conclude({**facts, "files": written, "shared_people": shared})
