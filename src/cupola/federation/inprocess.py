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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from cupola.errors import CupolaError, DataError
from cupola.federation.federation import Failure, Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import (
    Accounts,
    Host,
    Partial,
    SiteContext,
    StateStore,
    Task,
    admit,
    find_task,
)

Mode = Literal["auto", "one-by-one", "together", "stacked", "explicit", "implicit", "compiled"]

TOGETHER = 2048  # sites whose data are held at once when they are computed together


class InProcess(Federation):
    """Runs tasks for the sites of `host` in this process.

    seed: of the simulation. mode: 'auto' lets each task decide whether and how many sites are
    computed together; 'one-by-one' forbids it, 'together' insists on it, the others insist on one
    form of training (see cupola.learn.batched). workers: threads (default: the cores), each
    computing with one core; the number changes no result.
    cache: how many sites' data are kept ready. folder: where the book of what sites spend is kept
    (without it, in memory). parties: a site's keys, where sums are masked.
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
        self._party = parties

    def context(self, site: int) -> SiteContext:
        """The site as its tasks see it, in the calling worker's workspace."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = self.host.workspace()
        data, workspace = self._site_data(site), self._local.workspace
        party = None if self._party is None else self._party(site)
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

    def _admit(self, question: Question, sites: Sequence[int]) -> dict[int, str]:
        if self.accounts is None:
            return {}
        able = []
        for site in sites:
            with suppress(DataError):  # it will give no answer, so there is nothing to charge
                able.append(self.context(site))
        return admit(self.accounts, find_task(question.task), able, question)

    def _ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        task = find_task(question.task)
        workspace = self.context(sites[0]).workspace if sites else None
        if len(sites) < 2 or getattr(workspace, "serial", False):
            for site in sites:
                yield site, self._answer(task, question, site)
            return
        with one_core_each():
            if self.workers == 1 or getattr(workspace, "light", False):
                for site in sites:
                    yield site, self._answer(task, question, site)
                return
            pool = self._threads()
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

    def _ask_together(self, question: Question, sites: Sequence[int]) -> list[Partial] | None:
        task = find_task(question.task)
        if task.batched is None or self.mode == "one-by-one" or self._party is not None:
            return None  # with keys, each site decides for itself what it answers
        partials: list[Partial] | None = []
        # Blocks: the data of a million sites need not be held at once.
        for start in range(0, len(sites), TOGETHER):
            try:
                block = [self.context(site) for site in sites[start : start + TOGETHER]]
            except DataError:
                return None  # one by one, the site with bad data is left out and named
            more = task.batched(block, question)
            partials = None if partials is None or more is None else partials + more
            if partials is None:
                break
        if partials is None and self.mode != "auto":
            raise CupolaError(
                f"engine.mode = '{self.mode}': '{question.task}' cannot be computed in this form "
                "here (random or batch-dependent layers, or an unsupported choice); use 'auto'"
            )
        return partials

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="site")
        return self._pool

    def _confirmed(self, question: Question) -> int:
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


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def one_core_each() -> Iterator[None]:
    """One core per operation while several workers compute side by side."""
    if "torch" not in sys.modules:  # nobody computes with it
        yield
        return
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
