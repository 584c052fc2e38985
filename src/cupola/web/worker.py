"""The process behind a simulated study: python -m cupola.web.worker FOLDER."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from cupola.analysis.checkpoint import json_line
from cupola.base.files import write_atomically
from cupola.errors import CupolaError
from cupola.web.launcher import REASON, STOPPED
from cupola.web.plans import ASSOCIATION
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

    def say(self, phase: str, done: float = 0, of: float = 0, left: float | None = None) -> None:
        now, new = time.time(), (phase, done, of)
        if new != self.said and (now - self.last >= 0.1 or done >= of):
            line = {"time": round(now, 3), "phase": phase, "done": done, "of": of, "left": left}
            self.file.write(json_line(line) + "\n")
            self.file.flush()
            self.last, self.said = now, new


def _foresee(folder: Path, job: dict[str, Any]) -> None:
    """What `cupola check` says, or why it cannot say anything."""
    signal.alarm(LONGEST_CHECK)  # ends the process
    try:
        found = (_association if "cohorts" in job["plan"] else _training)(job)
    except CupolaError as error:
        found = {"error": str(error)}
    except Exception as error:
        traceback.print_exc()
        found = {"error": TOO_LARGE if _is_memory(error) else f"{type(error).__name__}: {error}"}
    write_atomically(folder / "foreseen.json", json_line(found))


def _training(job: dict[str, Any]) -> dict[str, Any]:
    from cupola.analysis.plan_file import load
    from cupola.web.forecast import foresee_elsewhere, rehearsed

    whole = load(job["plan"])
    return foresee_elsewhere(whole) if whole.data.name == "elsewhere" else rehearsed(whole)


def _association(job: dict[str, Any]) -> dict[str, Any]:
    from cupola.gwas.plan import load_study
    from cupola.web.forecast import forecast

    whole = load_study(job["plan"], elsewhere=True)
    there = [cohort for cohort in whole.cohorts if cohort.bfile is not None]
    return forecast(whole, there, Path(job["data"]))


def _carry_out(folder: Path, job: dict[str, Any], events: _Events) -> int:
    events.say("begin")
    where = folder / "run"
    try:
        if job["real"]:
            _hand_in(folder, job, events)
        elif job["kind"] == ASSOCIATION:
            _associate(where, job, events)
        else:
            _train(where, job["plan"], events)
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


def _train(where: Path, plan: dict[str, Any], events: _Events) -> None:
    from cupola.analysis.session import Progress, run

    def watch(p: Progress) -> None:
        phase = p.folder.name if p.folder != where else "training"
        events.say(phase, p.round, p.rounds, round(p.seconds_left, 1))

    run(plan, where, resume=True, progress=watch)


def _associate(where: Path, job: dict[str, Any], events: _Events) -> None:
    from cupola.gwas.study_run import run_study

    began = time.monotonic()
    os.chdir(job["data"])  # file names are relative to it, so that no path is written down

    def watch(phase: str, done: int, of: int) -> None:
        spent = time.monotonic() - began
        left = round(spent * (of - done) / done, 1) if done and phase.startswith("test") else None
        events.say(phase, done, of, left)

    run_study(job["plan"], where, resume=job["resume"], leaving=job["leaving"], watch=watch)


def _hand_in(folder: Path, job: dict[str, Any], events: _Events) -> None:
    """A study at real sites: the coordinator carries it out, and is followed from here."""
    from cupola import report
    from cupola.flare.coordinate import unpack
    from cupola.flare.submit import stop, submit
    from cupola.web.organiser import flare_job

    where, user = folder / "run", Path(job["real"]["user"])
    whole = flare_job(job["real"]["roster"], job["real"]["plan"])
    where.mkdir(exist_ok=True)
    (where / "result.json").unlink(missing_ok=True)  # of what is resumed
    rounds = [_kept_rounds(where / "history.jsonl")]

    def tell(told: dict[str, Any]) -> None:
        if (folder / STOPPED).exists():
            raise KeyboardInterrupt
        part, done = told.get("part") or "training", told.get("done") or told.get("round") or 0
        asked = f"{part}, step {done}" if done else ""
        write_atomically(folder / AWAY, json_line({"away": told.get("away", []), "asked": asked}))
        if told.get("part"):
            events.say(told["part"], told["done"], told["whole"])
            return
        if not told.get("round"):
            events.say(str(told.get("state", "waiting")))
            return
        events.say("training", told["round"], told["rounds"], round(told["seconds_left"], 1))
        if told["round"] != rounds[0] and told.get("record"):
            rounds[0] = told["round"]
            with (where / "history.jsonl").open("a", encoding="utf-8") as file:
                file.write(json_line(told["record"]) + "\n")  # until the whole comes at the end

    signal.signal(signal.SIGTERM, _interrupt)
    try:
        end, packed = submit(whole, user, tell)
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what ends it now must itself come to an end
        stop(whole, user)
        after = f" after round {rounds[0]}" if rounds[0] else ""
        write_atomically(folder / REASON, f"stopped{after}; the coordinator keeps what was reached")
        raise
    if packed:
        unpack(packed, where)
    if end["state"] != "finished" or not packed:
        raise CupolaError(end.get("reason") or f"the run ended as '{end['state']}'")
    report.write(where)


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
    from cupola.web import summary

    where = folder / "run"
    if kind == ASSOCIATION:
        from cupola.gwas.compare import read_results
        from cupola.gwas.report_sections import sections
        from cupola.web import hits

        result = json.loads((where / "result.json").read_text("utf-8"))
        table = read_results(where / result["files"][0])
        hits.build(folder / "hits.sqlite", table)
        _, parts = sections(where, table)
        found = summary.of_study(result)
    else:
        from cupola.learn.report_sections import sections as of_run
        from cupola.pages.folder import open_run

        run = open_run(where)
        parts = of_run(run)
        found = summary.of_run(run)
    write_atomically(folder / "results.html", "\n".join(part for part in parts if part))
    write_atomically(folder / "summary.json", json_line(found))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
