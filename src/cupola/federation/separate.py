"""The bytes engine: every question and answer passes as bytes through a separate process.

Nothing can leak by reference, time-outs and dead sites are real, and site state lives on the site's
own disk. Made for tests and small trials on one machine, not for speed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

import numpy as np

from cupola.errors import CupolaError, FederationError
from cupola.federation.federation import Failure, Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import (
    Contribution,
    Declined,
    Question,
    decode_contribution,
    decode_question,
    encode_contribution,
    encode_question,
)
from cupola.federation.site import SiteContext, StateStore, admit, find_task

_FAILED, _BROKEN, _ANSWER = b"F", b"B", b"A"


class SeparateProcesses(Federation):
    """One child process per site.

    factory: 'module:function' that a site calls with `config` (plain JSON values) to make its Host;
    no objects are shared. seed: of the simulation. folder: where sites keep their state (without
    it, state lives and dies with the process). timeout: seconds a site has for an answer; a late
    or dead site is left out, and a dead one is started again at the next question.
    party: 'module:function' and its plain arguments, by which a site makes its keys from its number
    and folder, where sums are masked.
    """

    def __init__(
        self,
        factory: str,
        config: Mapping[str, Any],
        sites: int,
        *,
        seed: int = 0,
        quorum: float = 0.0,
        timeout: float = 120.0,
        folder: str | Path | None = None,
        ledger: Ledger | None = None,
        party: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        super().__init__(sites, quorum=quorum, ledger=ledger)
        self.timeout = timeout
        self._start = {"factory": factory, "config": dict(config), "seed": seed, "party": party}
        self._folder = None if folder is None else str(Path(folder).resolve())
        self._children: dict[int, _Child] = {}

    def _child(self, site: int) -> _Child:
        child = self._children.get(site)
        if child is None or not child.alive():
            if child is not None:
                child.stop()
            child = _Child({**self._start, "site": site, "folder": self._folder})
            self._children[site] = child
        return child

    def _ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        data = encode_question(question)
        deadline = time.monotonic() + self.timeout
        asked = {site: self._child(site).send(data) for site in sites}
        for site in sites:
            yield site, self._children[site].receive(asked[site], deadline)

    def close(self) -> None:
        for child in self._children.values():
            child.stop()
        self._children = {}


class _Child:
    """The coordinator's end of one site process. Questions are numbered, so that a late answer
    to an older question is recognised and thrown away."""

    def __init__(self, start: dict[str, Any]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from cupola.federation import separate; separate.main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        self._questions: Queue[bytes] = Queue()
        self._answers: Queue[bytes] = Queue()
        self._asked = 0
        # Threads on both pipes: a frozen site must not block the coordinator in a write.
        self._threads = [Thread(target=work, daemon=True) for work in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        self.send(json.dumps(start).encode())

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, data: bytes) -> int:
        self._asked += 1
        self._questions.put(self._asked.to_bytes(8, "little") + data)
        return self._asked

    def receive(self, number: int, deadline: float) -> Contribution | Failure:
        while True:
            try:
                frame = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return Failure("late")
            if not frame:
                self._answers.put(b"")
                return Failure("dead")
            if int.from_bytes(frame[:8], "little") == number:
                break
        mark, body = frame[8:9], frame[9:]
        if mark != _ANSWER:
            return Failure(body.decode(errors="replace")[:200], broken=mark == _BROKEN)
        try:
            return decode_contribution(body)
        except FederationError as error:
            return Failure(str(error), broken=True)

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while frame := _read_frame(self._out):
                self._answers.put(frame)
        self._answers.put(b"")

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a dead site shows in receive()
            while frame := self._questions.get():
                _write_frame(self._in, frame)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._questions.put(b"")
        for thread in self._threads:
            thread.join()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()


def _write_frame(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(len(data).to_bytes(8, "little"))
    pipe.write(data)
    pipe.flush()


def _read_frame(pipe: IO[bytes]) -> bytes:
    """One frame, or empty bytes at the end of the stream."""
    size = pipe.read(8)
    if len(size) < 8:
        return b""
    length = int.from_bytes(size, "little")
    data = pipe.read(length)
    return data if len(data) == length else b""


class _DiskStore(StateStore):
    """A site's state on its own disk: one file per version, written before the answer is sent."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        for path in folder.glob("*.npz"):
            site, step = (int(part) for part in path.stem.split("-"))
            with np.load(path, allow_pickle=False) as arrays:
                self._versions.setdefault(site, {})[step] = dict(arrays)

    def write(self, site: int, step: int, arrays: dict[str, np.ndarray], confirmed: int) -> None:
        super().write(site, step, arrays, confirmed)
        path = self._folder / f"{site}-{step}.npz"
        temporary = path.with_suffix(".part")
        with temporary.open("wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        kept = {f"{site}-{s}" for s in self._versions[site]}
        for old in self._folder.glob(f"{site}-*.npz"):
            if old.stem not in kept:
                old.unlink()


def _serve(inbox: IO[bytes], outbox: IO[bytes]) -> None:
    """A site's life: make the host, then answer questions until the stream ends."""
    start = json.loads(_read_frame(inbox)[8:])
    site = start["site"]
    folder = Path(start["folder"]) if start["folder"] else None
    host = None
    store = _DiskStore(folder) if folder else StateStore()
    context = None
    accounts = None
    while frame := _read_frame(inbox):
        number, body = frame[:8], frame[8:]
        try:
            if context is None:
                host = named(start["factory"])(**start["config"])
                context = SiteContext(site, host.data(site), host.workspace(), store, start["seed"])
                if start["party"]:
                    make, agreed = start["party"]
                    context.party = named(make)(site, folder, **agreed)
                if hasattr(host, "accounts"):
                    accounts = host.accounts(folder, f"privacy-{site}")
            question = decode_question(body)
            task = find_task(question.task)
            refused = admit(accounts, task, [context], question)
            if refused:
                raise Declined(refused[site])
            contribution = task(context, question)
            answer = _ANSWER + encode_contribution(contribution)
        except Declined as refused:
            answer = _FAILED + refused.code.encode(errors="replace")
        except CupolaError as error:
            answer = _BROKEN + str(error).encode(errors="replace")
        except Exception as error:
            # Values and paths stay here; the kind of error is all that crosses the border.
            print(f"site {site}: {error!r}", file=sys.stderr)
            answer = _BROKEN + f"error at the site ({type(error).__name__})".encode()
        _write_frame(outbox, number + answer)


def named(path: str) -> Callable[..., Any]:
    """The function that 'module:function' names."""
    module, function = path.split(":")
    return getattr(importlib.import_module(module), function)


def main() -> None:
    """A site's process. A task that prints must not speak into the answers, so stdout is handed
    over to them and closed off."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, stream)
