"""One process's work on one run: drive its program, write down every step, save now and then.

After every step the state is complete; now and then it is saved. A resume starts from the saved
state, cuts the files back to it, and repeats what was lost, bit for bit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from cupola.analysis.checkpoint import Checkpoint, Log, json_line, write_sealed
from cupola.analysis.folder_lock import FULL, drop, room, signals
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.protocol import Analysis, Sites, Watch
from cupola.analysis.run_folder import CHAINS, FIXED, PLAN, likeness, resume_command
from cupola.analysis.run_progress import Progress
from cupola.base.chain import marks, require_marks, require_tails, tails
from cupola.errors import CupolaError, DataError
from cupola.federation.federation import Federation
from cupola.federation.ledger import Entry, Ledger
from cupola.federation.program import Program, State, driven
from cupola.federation.replay import Once, Replay


class Session:
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

    def execute(self) -> Generator[Progress]:
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
            yield from self._execute(saved)

    def _log(self, name: str, saved: Checkpoint | None) -> Log:
        length, tail = (saved.lengths.get(name, 0), saved.heads.get(name)) if saved else (0, None)
        return Log(self.folder / f"{name}.jsonl", length, tail)

    def _execute(self, saved: Checkpoint | None) -> Generator[Progress]:
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
                yield from self._drive(reach)
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
        if saved:
            self.ledger.restore({"down": saved.down, "up": saved.up})
            reach.restore(saved.state.step - 1, dict(saved.sites))
            reach.confirm(self.state.step - 1)
        if self.analysis.replayable and not self.sites.real:  # real sites follow by themselves
            reach.follow(Replay(self.program, self.state))

    def _drive(self, reach: Federation) -> Generator[Progress]:
        first = self.state.step
        self.began = self.saved_at = time.monotonic()
        part, done, _ = self.analysis.progress(self.state)
        self.first = {part: (done, self.began)}
        steps = driven(self.program, reach, self.state)
        try:
            while True:
                with signals(self._stop):  # not while somebody else's loop has its turn
                    state = next(steps, None)
                    shown = None if state is None else self._after(state, reach)
                if state is None:
                    break
                if shown is not None:
                    yield shown
            with signals(self._stop):
                if not self.analysis.replayable:  # which could be asked again
                    self._save(reach)
                self.analysis.finish(self.state, self.folder, self._between)
        except KeyboardInterrupt:
            self._save_after(first, reach)
            self._conclude("stopped", f"interrupted after {self._reached()}")
            raise KeyboardInterrupt(
                f"stopped after {self._reached(of=True)}; "
                f"resume with `{resume_command(self.folder, self.plan)}`"
            ) from None
        except GeneratorExit:  # whoever looped over the rounds has left
            self._save_after(first, reach)
            self._conclude("stopped", f"left after {self._reached()}")
            raise
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
        return f"{self._in_words(part)} {done}" + (f" of {whole}" if of and whole else "")

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
            way_out = f"make room, then resume with `{resume_command(self.folder, self.plan)}`"
            return DataError(f"{self.folder}: the disk is full ({error.strerror}); {way_out}")
        return error

    def _between(self, progress: Progress) -> None:
        """What `finish` calls now and then."""
        if self.stopping:
            raise KeyboardInterrupt
        if self.watch is not None:
            self.watch(progress)

    def _after(self, state: State, reach: Federation) -> Progress | None:
        """A step is complete: write its record down, and save if it is time. How far the run is, if
        there is news."""
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
        shown = self._news(record)
        if shown is not None and self.watch is not None:
            self.watch(shown)
        return shown

    def _news(self, record: dict[str, Any] | None) -> Progress | None:
        now = self.analysis.progress(self.state)
        if record is None and now == self.shown:
            return None
        self.shown = now
        part, done, whole = now
        clock = time.monotonic()
        first, since = self.first.setdefault(part, (done, clock))
        rate = (done - first) / max(clock - since, 1e-9)
        left = (whole - done) / rate if rate > 0 else float("inf")
        step, said = self.analysis.progress_step(self.state), self._in_words(part)
        return Progress(part, done, whole, record or {}, rate, left, self.folder, step, said)

    def _in_words(self, part: str) -> str:
        return self.analysis.progress_words.get(part, part)

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
            kept = (*kept, *CHAINS, "history.jsonl", "ledger.jsonl")
            kept = (*kept, *analysis.files_of(self.plan.name))
        summary["checksums"] = marks(self.folder, kept)
        write_sealed(self.folder / "result.json", json_line(summary, indent=2))
