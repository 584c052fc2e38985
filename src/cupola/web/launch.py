"""What carries studies out. A launcher fills a folder; everything else only reads that folder.

    job.json        what to do
    events.jsonl    progress: a line each, {"time", "phase", "done", "of", "left"}
    run/            the run folder, as `cupola run` or `cupola gwas run` fill it
    results.html, summary.json, hits.sqlite     made once the run has finished

`ChildProcess` simulates all sites in one process beside the server. A launcher for real sites has
the same three methods and fills the same folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

STOPPED = "stop-asked"
CHECKS = 2  # at the same time


@dataclass(frozen=True)
class Job:
    """kind: of the study, or 'check'. plan: as plain values. resume: go on with what the folder
    holds. leaving: cohorts to go on without. data: folder that file names are relative to."""

    kind: str
    plan: dict[str, Any]
    resume: bool = False
    leaving: list[str] = field(default_factory=list)
    data: str = ""


class Launcher(Protocol):
    """Starts and stops studies; none of its methods waits for one."""

    def start(self, job: Job, folder: Path) -> None: ...

    def stop(self, folder: Path) -> None: ...

    def alive(self, folder: Path) -> bool: ...

    def room(self) -> bool:
        """Whether another check may begin now."""
        ...


class ChildProcess:
    """A process for each study, in a session of its own: it outlives a restart of the server.

    Whether it lives is known by a lock that it inherits, and that the system frees when it ends.
    """

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self.checks: list[subprocess.Popen[bytes]] = []

    def start(self, job: Job, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / STOPPED).unlink(missing_ok=True)
        with (folder / "worker.lock").open("a+") as lock, (folder / "output.log").open("ab") as log:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / "job.json").write_text(json.dumps(asdict(job)), "utf-8")
            child = subprocess.Popen(
                [sys.executable, "-P", "-m", "cupola.web.worker", str(folder.resolve())],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
            lock.truncate(0)
            lock.write(str(child.pid))
        self.children.append(child)
        if job.kind == "check":
            self.checks.append(child)

    def stop(self, folder: Path) -> None:
        """Ask for an end after the present step."""
        if self.alive(folder):
            (folder / STOPPED).touch()
            with contextlib.suppress(ProcessLookupError, ValueError):
                os.kill(int((folder / "worker.lock").read_text()), signal.SIGTERM)

    def room(self) -> bool:
        self.checks = [child for child in self.checks if child.poll() is None]
        return len(self.checks) < CHECKS

    def alive(self, folder: Path) -> bool:
        self.children = [child for child in self.children if child.poll() is None]
        path = folder / "worker.lock"
        if not path.exists():
            return False
        with path.open("a+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False
