"""The bytes engine: every question and answer passes as bytes through a separate process.

Nothing can leak by reference, time-outs and dead sites are real, and site state lives on the site's
own disk. Made for tests and small trials on one machine, not for speed.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

from cupola.base.importing import imported
from cupola.federation.answering import Answering, Opened, read_answer
from cupola.federation.federation import Failure, Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import Contribution, Question, encode_question, largest_answer
from cupola.federation.receipts import Journal, Receipt, Receipts
from cupola.federation.site import SiteContext, StateStore
from cupola.federation.stored import Alone, DiskStore, StoredAnswers
from cupola.frames import read_frame, write_frame


class Processes(Federation):
    """One child process per party.

    opens: of each, 'module:function' and the plain arguments by which its process makes its
    `Answering`; no objects are shared. timeout: seconds a site has for an answer; a late or dead
    site is left out, and a dead one is started again at the next question.
    """

    def __init__(
        self,
        opens: Sequence[tuple[str, Mapping[str, Any]]],
        *,
        quorum: float = 0.0,
        timeout: float = 120.0,
        ledger: Ledger | None = None,
        receipts: Path | None = None,
    ) -> None:
        super().__init__(len(opens), quorum=quorum, ledger=ledger)
        self.timeout = timeout
        self._receipts = Receipts(receipts)
        self._opens = opens
        self._children: dict[int, _Child] = {}

    def _child(self, site: int) -> _Child:
        child = self._children.get(site)
        if child is None or not child.alive():
            if child is not None:
                child.stop()
            opens, facts = self._opens[site]
            child = _Child({"opens": opens, "facts": dict(facts)})
            self._children[site] = child
        return child

    def _ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        data = encode_question(question)
        deadline = time.monotonic() + self.timeout
        largest = largest_answer(question)
        asked = {site: self._child(site).send(data, largest) for site in sites}
        for site in sites:
            answer = self._children[site].receive(asked[site], deadline)
            if isinstance(answer, bytes):
                yield site, read_answer(answer, self._receipts, f"site {site}")
            else:
                yield site, answer

    def close(self) -> None:
        for child in self._children.values():
            child.stop()
        self._children = {}


class SeparateProcesses(Processes):
    """The sites of a simulation, a process each.

    factory: 'module:function' that a site calls with `config` (plain JSON values) to make its Host.
    seed: of the simulation. folder: where sites keep their state and the answers they gave
    (without it, state lives and dies with the process, and answers are not stored).
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
        facts = {
            "factory": factory,
            "config": dict(config),
            "seed": seed,
            "folder": None if folder is None else str(Path(folder).resolve()),
            "party": party,
        }
        opens = [("cupola.federation.separate:simulated_site", {**facts, "site": i})
                 for i in range(sites)]  # fmt: skip
        kept = None if folder is None else Path(folder).resolve() / "receipts.json"
        super().__init__(opens, quorum=quorum, timeout=timeout, ledger=ledger, receipts=kept)


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
        self._largest = 0
        # Threads on both pipes: a frozen site must not block the coordinator in a write.
        self._threads = [Thread(target=work, daemon=True) for work in (self._read, self._write)]
        for thread in self._threads:
            thread.start()
        self.send(json.dumps(start).encode(), 0)

    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, data: bytes, largest: int) -> int:
        """Ask; the number of the question. largest: bytes of an answer; more are not read."""
        self._asked += 1
        self._largest = max(self._largest, largest)
        self._questions.put(self._asked.to_bytes(8, "little") + data)
        return self._asked

    def receive(self, number: int, deadline: float) -> bytes | Failure:
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
        return frame[8:]

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while frame := read_frame(self._out, lambda: self._largest):
                self._answers.put(frame)
        self._answers.put(b"")
        self._process.kill()  # nothing it may still say can be understood: it starts anew

    def _write(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # a dead site shows in receive()
            while frame := self._questions.get():
                write_frame(self._in, frame)

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        self._questions.put(b"")
        for thread in self._threads:
            thread.join()
        for pipe in (self._in, self._out):
            with contextlib.suppress(OSError):
                pipe.close()


def _serve(inbox: IO[bytes], outbox: IO[bytes]) -> None:
    """A site's life: answer questions until the stream ends."""
    start = json.loads(read_frame(inbox)[8:])
    answering = imported(start["opens"])(**start["facts"])
    while frame := read_frame(inbox):
        write_frame(outbox, frame[:8] + answering.answer(frame[8:]))


def simulated_site(
    factory: str,
    config: Mapping[str, Any],
    site: int,
    seed: int,
    folder: str | None,
    party: tuple[str, Mapping[str, Any]] | None,
) -> Answering:
    """A site of a simulation, in a process of its own."""
    own = None if folder is None else Path(folder)
    answers = None if own is None else StoredAnswers(own / f"site-{site}" / "answers")
    journal = None
    if own is not None and answers is not None:
        journal = Journal(own / f"site-{site}" / "ledger.jsonl", lambda: answers.newest >= 0)

    def make() -> Opened:
        alone = None if own is None else Alone(own / f"site-{site}")
        host = imported(factory)(**config)
        store = DiskStore(own / f"site-{site}") if own else StateStore()
        if journal is not None and isinstance(store, DiskStore) and answers is not None:
            answers.look_again()
            journal.hold(
                {
                    "answers": (answers, lambda: answers.newest),
                    "state": (store, lambda: store.newest),
                }
            )
        context = SiteContext(site, host.data(site), host.workspace(), store, seed)
        if party:
            name, agreed = party
            context.party = imported(name)(site, own, **agreed)
        books = host.accounts(own, f"privacy-{site}") if hasattr(host, "accounts") else None
        return Opened(context, books, (alone,))

    def record(question: Question | None, answer: bytes, stored: bool) -> Receipt | None:
        step = None if question is None else question.step
        line = {"step": step, "bytes": len(answer), "again": stored}
        return None if journal is None else journal.write(line)

    return Answering(make, answers=answers, record=record)


def main() -> None:
    """A site's process. A task that prints must not speak into the answers, so stdout is handed
    over to them and closed off."""
    stream = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    _serve(sys.stdin.buffer, stream)
