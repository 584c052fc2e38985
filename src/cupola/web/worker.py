"""The process behind a study: python -m cupola.web.worker FOLDER."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cupola import report
from cupola.analysis.checkpoint import json_line
from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of, find_kind
from cupola.analysis.plan_file import load
from cupola.analysis.run_progress import Progress
from cupola.analysis.session import run
from cupola.base.files import write_atomically
from cupola.errors import CupolaError
from cupola.web.launcher import REASON, STOPPED, TABLE
from cupola.web.progress import AWAY

LONGEST_CHECK = 600  # seconds


def main(folder: Path) -> int:
    job = json.loads((folder / "job.json").read_text("utf-8"))
    _limit(folder, job)
    try:
        if job["kind"] == "check":
            _foresee(folder, job)
            return 0
        with (folder / "events.jsonl").open("a", encoding="utf-8") as file:
            return _carry_out(folder, job, _Events(file))
    except KeyboardInterrupt:
        return 130
    except Exception:
        traceback.print_exc()
        return 1


def _limit(folder: Path, job: dict[str, Any]) -> None:
    """Hold this process to what the server gives a study."""
    if job.get("memory"):
        resource.setrlimit(resource.RLIMIT_DATA, (job["memory"], job["memory"]))
    if job.get("hours"):

        def end(*_: Any) -> None:
            said = f"stopped after {job['hours']:g} hours, the most that this server gives a study"
            write_atomically(folder / REASON, said + "; resume it to go on")
            os.kill(os.getpid(), signal.SIGTERM)  # as its coordinator would stop it

        signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, 3600 * job["hours"])


def _is_memory(error: BaseException) -> bool:
    """Torch says it in words of its own."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and ("allocate" in said or "memory" in said)
    )


TOO_LARGE = "it needs more memory than this server gives a study"


class _Events:
    """Lines of progress, at most ten a second, and none that says nothing new."""

    def __init__(self, file: Any) -> None:
        self.file, self.last, self.said = file, 0.0, ("", 0.0, 0.0)

    def say(
        self,
        phase: str,
        done: float = 0,
        of: float = 0,
        left: float | None = None,
        step: Sequence[int] = (1, 1),
    ) -> None:
        """left: seconds, of this step. step: which one, of how many."""
        phase = f"step {step[0]} of {step[1]}, {phase}" if step[1] > 1 else phase
        now, new = time.time(), (phase, done, of)
        if new != self.said and (now - self.last >= 0.1 or done >= of):
            line = {"time": round(now, 3), "phase": phase, "done": done, "of": of, "left": left,
                    "last": step[0] >= step[1]}  # fmt: skip
            self.file.write(json_line(line) + "\n")
            self.file.flush()
            self.last, self.said = now, new


def _foresee(folder: Path, job: dict[str, Any]) -> None:
    """What the plan will ask, send and spend, or why that cannot be said."""
    signal.alarm(LONGEST_CHECK)  # ends the process
    try:
        found = analysis_of(load(job["plan"], elsewhere=True)).foresee(Path(job["data"]))
    except CupolaError as error:
        found = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        found = {"error": TOO_LARGE if _is_memory(error) else f"{type(error).__name__}: {error}"}
    write_atomically(folder / "foreseen.json", json_line(found))


def _carry_out(folder: Path, job: dict[str, Any], events: _Events) -> int:
    events.say("begin")
    try:
        if job["real"]:
            _hand_in(folder, job, events)
        else:
            _simulate(folder / "run", job, events)
        events.say("results")
        _present(folder, job["kind"])
    except KeyboardInterrupt:
        events.say("stopped")
        return 130
    except CupolaError as error:
        print(error, file=sys.stderr)
        write_atomically(folder / REASON, str(error))
        events.say("failed")
        return 1
    except (MemoryError, RuntimeError) as error:
        if _is_memory(error):
            write_atomically(folder / REASON, TOO_LARGE)
        raise
    events.say("finished")
    return 0


def _simulate(where: Path, job: dict[str, Any], events: _Events) -> None:
    if find_kind(job["kind"]).unchosen is not None:
        os.chdir(job["data"])  # file names are relative to it, so that no path is written down

    def watch(now: Progress) -> None:
        phase = now.folder.name if now.folder != where else _phase(job["kind"], now.part, now.said)
        events.say(phase, now.done, now.whole, _left(now.seconds_left), now.step)

    run(job["plan"], where, resume=True, progress=watch)


def _phase(kind: str, part: str, said: str | None = None) -> str:
    """What a run is about: 'training', rather than 'round'."""
    usual = find_kind(kind).progress_part
    return kind.rpartition(":")[2] if part == usual else said or part


def _left(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else round(seconds, 1)


def _hand_in(folder: Path, job: dict[str, Any], events: _Events) -> None:
    """A study at real sites: the coordinator carries it out, and is followed from here."""
    from cupola.engines.flare.jobs import Job
    from cupola.engines.flare.submit import stop, submit
    from cupola.site.coordinator import take_over

    where, user = folder / "run", Path(job["real"]["user"])
    whole = Job.of(job["real"]["plan"], job["real"]["roster"])
    where.mkdir(exist_ok=True)
    (where / "result.json").unlink(missing_ok=True)  # of what is resumed
    reached = [_kept_rounds(where / "history.jsonl")]

    def tell(told: dict[str, Any]) -> None:
        if (folder / STOPPED).exists():
            raise KeyboardInterrupt
        part, done = told.get("part"), told.get("done") or 0
        phase = (
            _phase(job["kind"], part, told.get("said"))
            if part
            else str(told.get("state", "waiting"))
        )
        asked = f"{phase}, {done:,}" if done else ""
        write_atomically(folder / AWAY, json_line({"away": told.get("away", []), "asked": asked}))
        if not part:
            events.say(phase)
            return
        step = tuple(told.get("step") or (1, 1))
        events.say(phase, done, told["whole"], _left(told["seconds_left"]), step)
        record = told.get("record") or {}
        if record and record.get("round", done) != reached[0]:
            reached[0] = record.get("round", done)
            with (where / "history.jsonl").open("a", encoding="utf-8") as file:
                file.write(json_line(record) + "\n")  # until the whole comes at the end

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        end, packed = submit(whole, user, tell)
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what ends it now must itself come to an end
        stop(whole, user)
        after = f" after round {reached[0]}" if reached[0] else ""
        write_atomically(folder / REASON, f"stopped{after}; the coordinator keeps what was reached")
        raise
    plan: PlanHeader = load(job["real"]["plan"] + "\n", elsewhere=True)
    take_over(end, packed, where, plan)
    report.write(where, analysis_of(plan))


def _kept_rounds(path: Path) -> int:
    """The last round that was seen before a stop; its records stay until the whole comes."""
    try:
        return int(json.loads(path.read_text("utf-8").splitlines()[-1])["round"])
    except (OSError, ValueError, LookupError):
        return 0


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _present(folder: Path, kind: str) -> None:
    """The pages of a finished run are made once, here."""
    run = report.open_run(folder / "run")
    analysis = find_kind(kind).of_report(run.plan)
    if analysis.table_link:
        analysis.index_table(run, folder / TABLE)
    parts = [part for part in analysis.sections(run) if part]
    write_atomically(folder / "results.html", "\n".join(parts))
    write_atomically(folder / "summary.json", json_line(analysis.in_short(run)))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
