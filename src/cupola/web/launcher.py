"""What carries studies out. A launcher fills a folder; everything else only reads that folder.

    job.json        what to do
    events.jsonl    progress: a line each, {"time", "phase", "done", "of", "left"}
    run/            the run folder, as `cupola run` fills it
    results.html, summary.json, hits.sqlite     made once the run has finished

`ChildProcess` simulates all sites in one process beside the server, or hands a study of real sites
in and follows it; `organiser.FlareLauncher` also sees to it that their coordinator runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from cupola.base.files import is_held, take

STOPPED = "stop-asked"
REASON = "reason.txt"  # why it ended, where the run itself does not say it
LOCK = "worker.lock"
TABLE = "hits.sqlite"  # of results, to be searched
CHECKS = 2  # at the same time


@dataclass(frozen=True)
class Job:
    """kind: of the analysis, or 'check'. plan: as plain values. resume: the folder holds a run.
    data: folder that file names are relative to. real: at real sites; their roster, the
    plan, and the folder of whoever hands it in. memory, hours: bytes and time that it may take on
    this machine; 0: no limit."""

    kind: str
    plan: dict[str, Any]
    resume: bool = False
    data: str = ""
    real: dict[str, str] = field(default_factory=dict)
    memory: int = 0
    hours: float = 0.0


class Launcher(Protocol):
    """Starts and stops studies; none of its methods waits for one."""

    def start(self, job: Job, folder: Path) -> None: ...

    def stop(self, folder: Path) -> None: ...

    def alive(self, folder: Path) -> bool: ...

    def room(self) -> bool:
        """Whether another check may begin now."""
        ...


def hold(
    command: list[str], lock: Path, log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which outlives this one. Whether it lives is known
    by a lock that it inherits, and that the system frees when it ends. BlockingIOError: another
    one holds the lock."""
    with lock.open("a+") as held, log.open("ab") as out:
        if not take(held):
            raise BlockingIOError(f"{lock} is held")
        child = subprocess.Popen(
            command,
            cwd=lock.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
            pass_fds=[held.fileno()],
            env=None if environment is None else {**os.environ, **environment},
        )
        held.truncate(0)
        held.write(str(child.pid))
    return child


def holder(lock: Path) -> int | None:
    """The process that holds a lock."""
    with contextlib.suppress(OSError, ValueError):
        if is_held(lock):
            return int(lock.read_text())
    return None


class ChildProcess:
    """A process for each study, which outlives a restart of the server."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.checks: list[subprocess.Popen[bytes]] = []

    def start(self, job: Job, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if is_held(folder / LOCK):
            raise BlockingIOError("it runs already")
        for name in (STOPPED, REASON):
            (folder / name).unlink(missing_ok=True)
        (folder / "job.json").write_text(json.dumps(asdict(job)), "utf-8")
        line = [sys.executable, "-P", "-m", "cupola.web.worker", str(folder.resolve())]
        child = hold(line, folder / LOCK, folder / "output.log")
        self.children.append(child)
        if job.kind == "check":
            self.checks.append(child)

    def stop(self, folder: Path) -> None:
        """Ask for an end after the present step."""
        if self.alive(folder):
            (folder / STOPPED).touch()
            with contextlib.suppress(ProcessLookupError):
                number = holder(folder / LOCK)
                if number is not None:
                    os.kill(number, signal.SIGTERM)

    def room(self) -> bool:
        self.checks = [child for child in self.checks if child.poll() is None]
        return len(self.checks) < CHECKS

    def alive(self, folder: Path) -> bool:
        self.children = [child for child in self.children if child.poll() is None]
        return is_held(folder / LOCK)
