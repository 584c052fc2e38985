"""A party's own process, as long as a study needs it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from cupola.engines.flare.launch import runs

ENDING = 15.0  # seconds that it has to end by itself


class Running:
    """`cupola site start` (or compensator) beside this process, unless one runs already."""

    def __init__(self, folder: Path, kind: str, cores: int = 1) -> None:
        self.folder, self.kind, self.cores = folder, kind, cores
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Running:
        self.look()
        return self

    def look(self) -> None:
        """Start it, also again if it died."""
        if self._child is not None and self._child.poll() is None:
            return
        if self._child is None and runs(self.folder):
            return  # as a service of its own; it was told of the study by the settings
        threads = {name: str(self.cores) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
        line = [sys.executable, "-m", "cupola", self.kind, "start", "-f", str(self.folder)]
        with (self.folder / "client.log").open("ab") as log:
            self._child = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **threads},
            )

    def __exit__(self, *_: object) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for number, wait in ((signal.SIGTERM, ENDING), (signal.SIGKILL, None)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(wait)
                if number == signal.SIGKILL:
                    return
