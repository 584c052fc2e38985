"""The bytes engine: every question and answer passes as bytes through a separate process.

Nothing can leak by reference, time-outs and dead sites are real, and site state lives on the site's
own disk. Made for tests and small trials on one machine, not for speed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cupola.base.cores import cores
from cupola.base.importing import imported
from cupola.engines.child_process import ONE_THREAD, ChildProcess
from cupola.federation.answering import Answering, OpenSite, read_answer
from cupola.federation.federation import Answers, Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import Question, encode_question, largest_answer
from cupola.federation.receipts import Journal, Receipt, Receipts
from cupola.federation.site import SiteContext, StateStore
from cupola.federation.stored import DiskStore, SingleWriterLock, StoredAnswers


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
        own = {"CUPOLA_THREADS": str(max(1, cores() // len(opens)))}  # kernels of the sites
        environment = {**own, **os.environ, **ONE_THREAD}
        self._children = [ChildProcess(*how, environment) for how in opens]

    def ask(self, question: Question, sites: Sequence[int]) -> Answers:
        data, largest = encode_question(question), largest_answer(question)
        deadline = time.monotonic() + self.timeout
        asked = {site: self._children[site].send(data, largest) for site in sites}
        for site in sites:
            answer = self._children[site].receive(asked[site], deadline)
            yield site, read_answer(answer, self._receipts, f"site {site}")

    def close(self) -> None:
        for child in self._children:
            child.stop()


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
        opens = [("cupola.engines.processes:simulated_site", {**facts, "site": i})
                 for i in range(sites)]  # fmt: skip
        kept = None if folder is None else Path(folder).resolve() / "receipts.json"
        super().__init__(opens, quorum=quorum, timeout=timeout, ledger=ledger, receipts=kept)


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

    def opened(store: StateStore, *closes: Any) -> OpenSite:
        host = imported(factory)(**config)
        context = SiteContext(site, host.data(site), host.workspace(), store, seed)
        if party:
            name, agreed = party
            context.party = imported(name)(site, own, **agreed)
        books = host.accounts(own, f"privacy-{site}") if hasattr(host, "accounts") else None
        return OpenSite(context, books, closes)

    if own is None:
        return Answering(lambda: opened(StateStore()))
    place = own / f"site-{site}"
    answers = StoredAnswers(place / "answers")
    journal = Journal(place / "ledger.jsonl", lambda: answers.newest >= 0)

    def make() -> OpenSite:
        lock, store = SingleWriterLock(place), DiskStore(place)
        answers.look_again()
        journal.hold(
            {
                "answers": (answers, lambda: answers.newest),
                "state": (store, lambda: store.newest),
            }
        )
        return opened(store, lock)

    def record(question: Question | None, answer: bytes, stored: bool) -> Receipt:
        step = None if question is None else question.step
        return journal.write({"step": step, "bytes": len(answer), "again": stored})

    return Answering(make, answers=answers, record=record)
