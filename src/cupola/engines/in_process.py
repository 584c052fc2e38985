"""All sites in this process: the default engine, without set-up.

A task that has a form for many sites at once is asked for it; otherwise sites run one by one, each
worker thread on one reused workspace. Answers are added in the order of sites, whoever finishes
first, so the number of workers never changes a result.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cupola.base.cores import cores, one_core_each
from cupola.errors import CupolaError, DataError
from cupola.federation.federation import Answers, Failure, Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import (
    Accounts,
    Host,
    Mode,
    Partial,
    SiteContext,
    StateStore,
    Task,
    admit,
    find_task,
)

TOGETHER = 2048  # sites whose data are held at once when they are computed together


class InProcess(Federation):
    """Runs tasks for the sites of `host` in this process.

    seed: of the simulation. mode: 'auto' lets each task decide whether and how many sites are
    computed together; 'one-by-one' forbids it, 'together' insists on it, the others insist on one
    form of training (see cupola.training.batched). workers: threads (default: the cores), each
    computing with one core; the number changes no result.
    cache: how many sites' data are kept ready. folder: where the book of what sites spend is kept
    (without it, in memory). parties: a site's keys, where sums are masked.

    >>> from cupola.analysis import Hosted
    >>> from cupola.federation import Contribution, Question, Spec, task
    >>> @task("add up")
    ... def add_up(site, question):
    ...     return Contribution({"sum": site.data.sum(axis=0)})
    >>> with InProcess(Hosted(3, lambda site: np.full((2, 2), float(site)))) as federation:
    ...     total = federation.sum(Question("add up", expects={"sum": Spec((2,))}), range(3))
    >>> total.arrays["sum"], total.sites
    (array([6., 6.]), [0, 1, 2])
    """

    def __init__(
        self,
        host: Host,
        *,
        seed: int = 0,
        mode: Mode = "auto",
        workers: int | None = None,
        quorum: float = 0.0,
        ledger: Ledger | None = None,
        cache: int = 4096,
        folder: Path | None = None,
        parties: Callable[[int], Any] | None = None,
    ) -> None:
        super().__init__(len(host), quorum=quorum, ledger=ledger)
        _keep_freed_memory()
        open_accounts = getattr(host, "accounts", None)
        self.accounts: Accounts | None = open_accounts(folder, "privacy") if open_accounts else None
        self.host = host
        self.seed = seed
        self.mode = mode
        self.workers = workers or cores()
        self.store = StateStore()
        self._local = threading.local()
        self._pool: ThreadPoolExecutor | None = None
        self._data: OrderedDict[int, Any] = OrderedDict()
        self._cache = cache
        self._lock = threading.Lock()
        self.parties = parties

    def context(self, site: int) -> SiteContext:
        """The site as its tasks see it, in the calling worker's workspace."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = self.host.workspace()
        data, workspace = self._site_data(site), self._local.workspace
        party = None if self.parties is None else self.parties(site)
        return SiteContext(
            site, data, workspace, self.store, self.seed, self.workers, self.mode, party
        )

    def _site_data(self, site: int) -> Any:
        with self._lock:
            if site in self._data:
                self._data.move_to_end(site)
                return self._data[site]
        data = self.host.data(site)
        with self._lock:
            self._data[site] = data
            if len(self._data) > self._cache:
                self._data.popitem(last=False)
        return data

    def admit(self, question: Question, sites: Sequence[int]) -> dict[int, str]:
        if self.accounts is None:
            return {}
        able = []
        for site in sites:
            with suppress(DataError):  # it will give no answer, so there is nothing to charge
                able.append(self.context(site))
        return admit(self.accounts, find_task(question.task), able, question)

    def ask(self, question: Question, sites: Sequence[int]) -> Answers:
        task = find_task(question.task)
        workspace = self.context(sites[0]).workspace if sites else None
        alone = len(sites) < 2 or getattr(workspace, "serial", False)
        with nullcontext() if alone else one_core_each():
            if alone or self.workers == 1 or getattr(workspace, "light", False):
                for site in sites:
                    yield site, self._answer(task, question, site)
                return
            pool = self._pool or ThreadPoolExecutor(self.workers, thread_name_prefix="site")
            self._pool = pool
            waiting: deque[tuple[int, Future[Contribution | Failure]]] = deque()
            for site in sites:
                waiting.append((site, pool.submit(self._answer, task, question, site)))
                if len(waiting) > 2 * self.workers:  # bounded: answers can be as large as models
                    done, future = waiting.popleft()
                    yield done, future.result()
            for done, future in waiting:
                yield done, future.result()

    def _answer(self, task: Task, question: Question, site: int) -> Contribution | Failure:
        try:
            return task(self.context(site), question)
        except Declined as refused:
            return Failure(refused.code)
        except CupolaError as error:
            return Failure(str(error), broken=True)

    def ask_together(self, question: Question, sites: Sequence[int]) -> list[Partial] | None:
        task = find_task(question.task)
        if task.batched is None or self.mode == "one-by-one" or self.parties is not None:
            return None  # with keys, each site decides for itself what it answers
        partials: list[Partial] = []
        # Blocks: the data of a million sites need not be held at once.
        for start in range(0, len(sites), TOGETHER):
            try:
                block = [self.context(site) for site in sites[start : start + TOGETHER]]
            except DataError:
                return None  # one by one, the site with bad data is left out and named
            more = task.batched(block, question)
            if more is None and self.mode == "auto":
                return None
            if more is None:
                raise CupolaError(
                    f"engine.mode = '{self.mode}': '{question.task}' cannot be computed in this "
                    "form here (random or batch-dependent layers, or an unsupported choice); use "
                    "'auto'"
                )
            partials += more
        return partials

    def confirmed_for(self, question: Question) -> int:
        # Sites live and die with the coordinator, which saves their state with its own.
        return question.step - 1

    def export(self, step: int) -> dict[str, np.ndarray]:
        return self.store.export(step)

    def restore(self, step: int, arrays: dict[str, np.ndarray]) -> None:
        self.store.restore(step, arrays)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        for opened in (self.accounts, self.host):
            close = getattr(opened, "close", None)
            if close:
                close()


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Let the C library keep large freed blocks for the next operation.

    glibc hands them back and gets them again page by page, which takes up to half of the time of
    stacked training. The process then stays at its peak size; CUPOLA_KEEP_MEMORY=0 forbids it.
    """
    if not sys.platform.startswith("linux") or os.environ.get("CUPOLA_KEEP_MEMORY") == "0":
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    with suppress(OSError, AttributeError):  # another C library has no mallopt
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 1 << 30)
        library.mallopt(trim_threshold, (1 << 31) - 1)
        library.mallopt(arena_max, 1)
