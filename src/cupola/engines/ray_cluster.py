"""Sites over the workers of a Ray cluster: the cores of one machine, or many machines.

Workers hold the data and one model each, and return one sum for all of their sites. What must not
die with a worker stays with the coordinator: the sites' state, which travels with question and
answer, and their accounts. So a worker that dies is started again and asked again.

Ray carries pickles and trusts everybody in the cluster: this is for simulation.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from cupola.base.cores import cores
from cupola.engines.in_process import InProcess
from cupola.engines.ray_connection import cause, connect, library, reason, told
from cupola.engines.ray_worker import Came, Start, States, Worker, own, parcel, received
from cupola.errors import FederationError
from cupola.federation.federation import Answers, Failure
from cupola.federation.ledger import Ledger
from cupola.federation.message import Contribution, Question
from cupola.federation.site import Host, Mode, Partial, find_task, task_modules, unnamed_tasks

PULSE = 1.0  # seconds between two looks at a worker that computes
STARTING = 180.0  # seconds that workers have to start, or `timeout` if that is longer
TRIES = 2  # times that sites are asked whose worker dies
BITE_BYTES = 16 << 20  # of answers that a worker sends at once where each is wanted
BITE_SITES = 512
CACHED = 4096  # sites whose data are kept ready, over all workers


class RayCluster(InProcess):
    """Runs tasks for the sites of `host` in Ray actors.

    workers: how many, one core each (default: all cores). address: of a running cluster ('auto',
    'host:port', 'ray://host:port'); without it one is started on this machine and stopped by
    `close`. If this process is connected to a cluster already, that one is used. timeout: seconds
    that a worker may go on without finishing a site (or a block of sites that are computed
    together); then its sites are late. gpus: share the cluster's GPUs out among workers.
    parties, party: a site's keys, where sums are masked: here, and how a worker makes them.
    """

    def __init__(
        self,
        host: Host,
        *,
        seed: int = 0,
        mode: Mode = "auto",
        workers: int | None = None,
        address: str | None = None,
        quorum: float = 0.0,
        timeout: float = 120.0,
        ledger: Ledger | None = None,
        folder: Path | None = None,
        gpus: bool = False,
        parties: Callable[[int], Any] | None = None,
        party: tuple[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self._ray = library()
        super().__init__(
            host, seed=seed, mode=mode, workers=1, quorum=quorum, ledger=ledger, folder=folder,
            parties=parties,
        )  # fmt: skip
        self.timeout = timeout
        self._slots: list[_Slot] = []
        self._disconnect: Callable[[], None] | None = None
        try:
            if not self._ray.is_initialized():
                self._disconnect = connect(self._ray, address, workers or cores())
            self._actor, count = self._resources(workers, gpus)
            self._start = Start(
                seed=seed,
                mode=mode,
                cache=max(CACHED // count, BITE_SITES),
                party=party,
                path=[os.path.abspath(place) for place in sys.path],
                environment={k: v for k, v in os.environ.items() if k.startswith("CUPOLA_")},
                modules=task_modules(),
                version=importlib.import_module("cupola").__version__,
            )
            self._host = self._ray.put(parcel((host, unnamed_tasks())))
            self._slots = [_Slot() for _ in range(count)]
            self._begin(self._slots)
        except BaseException:
            self.close()
            raise

    def _resources(self, workers: int | None, gpus: bool) -> tuple[Any, int]:
        """The actor class with what each needs, and how many there will be."""
        present = self._ray.cluster_resources()
        most = int(present.get("CPU", 0))
        count = workers or max(most, 1)
        if count > most:
            raise FederationError(
                f"engine.workers = {count}, but the Ray cluster has {most} CPUs; lower it"
            )
        share = min(1.0, present.get("GPU", 0) / count) if gpus else 0.0
        needs = {"num_cpus": 1, "num_gpus": share, "max_restarts": 0}
        # In a group of its own a worker tells its progress while it computes. (Named here and not
        # with every call: clients of a `ray://` address cannot.)
        self._ray.method(concurrency_group="watch")(Worker.progress)
        return self._ray.remote(**needs, concurrency_groups={"watch": 1})(Worker), count

    def _begin(self, slots: Sequence[_Slot]) -> None:
        """Start workers and hand them the data."""
        ray = self._ray
        for slot in slots:
            slot.actor = self._actor.remote()
            slot.generation += 1
        ready = [slot.actor.prepare.remote(self._start, self._host) for slot in slots]
        wait = max(STARTING, self.timeout)
        up, missing = ray.wait(ready, num_returns=len(ready), timeout=wait)
        try:
            versions = set(ray.get(up))
        except ray.exceptions.RayError as error:
            raise FederationError(f"a Ray worker cannot start: {cause(error)}") from error
        if missing:
            raise FederationError(
                f"{len(missing)} of {len(slots)} Ray workers did not start within {wait:g} s; "
                "others may have taken the cluster's CPUs (see `ray status`)"
            )
        if others := versions - {self._start.version}:
            raise FederationError(
                f"the Ray cluster has Cupola {others.pop()}, this is {self._start.version}; "
                "install the same version everywhere"
            )

    def ask_together(self, question: Question, sites: Sequence[int]) -> list[Partial] | None:
        if self.parties is not None:
            return None  # with keys, each site hides its own answer
        partials: list[Partial] = []
        for job in self._deal("add", question, self._put(question), sites):
            came = self._finish(job)
            if isinstance(came, str):
                failed = dict.fromkeys(job.sites, came)
                partials.append(Partial({}, 0.0, [], failed, {}, list(job.sites)))
            else:
                partials += received(came)
        return partials

    def ask(self, question: Question, sites: Sequence[int]) -> Answers:
        asked = self._put(question)
        windows: deque[tuple[Sequence[int], list[_Job]]] = deque()
        width = len(self._slots) * _bite(question, -(-len(sites) // len(self._slots)))
        for start in range(0, len(sites), width):
            window = sites[start : start + width]
            windows.append((window, self._deal("answer", question, asked, window)))
            if len(windows) > 2:  # bounded: answers can be as large as models
                yield from self._collect(*windows.popleft())
        while windows:
            yield from self._collect(*windows.popleft())

    def _put(self, question: Question) -> Any:
        """A question where workers find it; its task must be known."""
        find_task(question.task)
        return self._ray.put(question)

    def _deal(self, how: str, question: Question, asked: Any, sites: Sequence[int]) -> list[_Job]:
        """Ask each worker for its share of these sites."""
        return [
            self._send(_Job(place, how, question, asked, dealt, self._states(question, dealt)))
            for place, dealt in enumerate(self._shares(question, sites))
            if dealt
        ]

    def _collect(self, sites: Sequence[int], jobs: Sequence[_Job]) -> Answers:
        found: dict[int, Contribution | Failure] = {}
        for job in jobs:
            came = self._finish(job)
            if isinstance(came, str):
                found |= dict.fromkeys(job.sites, Failure(came, broken=True))
            else:
                found |= dict(came)
        for site in sites:
            answer = found.pop(site)
            if isinstance(answer, Contribution):
                answer = Contribution(own(answer.arrays), answer.weight)
            yield site, answer

    @property
    def _is_sticky(self) -> bool:
        """Whether a site must always be asked at the same worker: something of it is only there."""
        return self.parties is not None or getattr(self.host, "remembers", False)

    def _shares(self, question: Question, sites: Sequence[int]) -> list[list[int]]:
        """Sites by worker: neighbours together, about as much work for each worker."""
        count = len(self._slots)
        if self._is_sticky:
            return [[site for site in sites if site % count == i] for i in range(count)]
        effort = getattr(self.host, "effort", None)
        work = effort(question, sites) if effort else np.ones(len(sites))
        return shares(sites, work, count)

    def _states(self, question: Question, sites: Sequence[int]) -> States:
        known = ((site, self.store.read(site, question.step)) for site in sites)
        return {site: arrays for site, arrays in known if arrays}

    def _send(self, job: _Job) -> _Job:
        slot = self._slots[job.place]
        if slot.actor is None:
            self._begin([slot])
        job.generation, job.tries = slot.generation, job.tries + 1
        job.reference = getattr(slot.actor, job.how).remote(job.asked, job.sites, job.states)
        return job

    def _finish(self, job: _Job) -> list[Any] | str:
        """What came of a job; if it came to nothing, why. What sites keep, they keep here."""
        came = self._result(job)
        if isinstance(came, str):
            return came
        for site, arrays in came.kept.items():
            self.store.write(site, job.question.step, own(arrays), job.question.confirmed)
        return came.found

    def _result(self, job: _Job) -> Came | str:
        ray, slot = self._ray, self._slots[job.place]
        done, moved = -1, time.monotonic()  # when the worker was last seen to finish a site
        while True:
            ready, _ = ray.wait([job.reference], timeout=min(PULSE, self.timeout))
            if ready:
                try:
                    return ray.get(job.reference)
                except ray.exceptions.RayTaskError as error:
                    raise told(error) from error
                except ray.exceptions.RayError as error:
                    why = reason(ray, error)
                if job.generation == slot.generation:
                    self._stop(slot)
                if job.tries >= TRIES:
                    return why
                self._send(job)
                done, moved = -1, time.monotonic()
                continue
            now = self._progress(slot)
            if now not in (None, done):
                done, moved = now, time.monotonic()
            elif time.monotonic() - moved > self.timeout:
                self._stop(slot)
                return "late"

    def _progress(self, slot: _Slot) -> int | None:
        """How far a worker is; None if it does not say, since it is frozen or dead."""
        if slot.actor is None:  # another job of its has found that out
            return None
        asked = slot.actor.progress.remote()
        ready, _ = self._ray.wait([asked], timeout=min(PULSE, self.timeout))
        with suppress(self._ray.exceptions.RayError):
            return self._ray.get(asked) if ready else None
        return None

    def _stop(self, slot: _Slot) -> None:
        if slot.actor is not None:
            with suppress(Exception):  # it may be dead already, or the cluster gone
                self._ray.kill(slot.actor)
            slot.actor = None

    def close(self) -> None:
        super().close()
        for slot in self._slots:
            self._stop(slot)
        self._slots, self._host = [], None
        if self._disconnect is not None:
            disconnect, self._disconnect = self._disconnect, None
            disconnect()


@dataclass
class _Slot:
    """The place of a worker; generation: how many have been in it."""

    actor: Any = None
    generation: int = 0


@dataclass
class _Job:
    """A question to the sites of one worker. how: 'add' or 'answer'. asked: the question, where
    workers find it."""

    place: int
    how: str
    question: Question
    asked: Any
    sites: list[int]
    states: States
    reference: Any = None
    generation: int = 0
    tries: int = 0


def shares(sites: Sequence[int], work: np.ndarray, count: int) -> list[list[int]]:
    """Sites in their order, cut into `count` pieces of about equal work."""
    until = np.cumsum(work) - np.asarray(work) / 2  # a site belongs where its middle lies
    piece = np.minimum((until * count / max(float(np.sum(work)), 1e-300)).astype(int), count - 1)
    edges = np.searchsorted(piece, np.arange(count + 1))
    return [list(sites[a:b]) for a, b in pairwise(edges)]


def _bite(question: Question, most: int) -> int:
    """How many sites' answers a worker sends at once."""
    size = sum(8 * prod(spec.shape) for spec in question.expects.values())
    return max(1, min(BITE_BYTES // max(size, 1), BITE_SITES, most))
