"""What a worker of the Ray engine does: an in-process engine over its share of the sites.

Data come to a worker once, the state of sites with every question. A worker adds up the answers of
its sites and sends the sum. Nothing here needs Ray but `parcel`.
"""

from __future__ import annotations

import importlib
import io
import os
import pickle
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.base.importing import imported
from cupola.engines.in_process import TOGETHER, InProcess
from cupola.federation.federation import Answers, Total, is_broken, usable
from cupola.federation.message import Arrays, Question, opened
from cupola.federation.site import Mode, Partial, StateStore, is_known, register

if TYPE_CHECKING:
    import torch  # imported where it is used: a federation that trains nothing starts without it

Layout = tuple[tuple[str, str, tuple[int, ...]], ...]
States = dict[int, Arrays]  # by site
Parcel = tuple[bytes, list[np.ndarray]]


@dataclass(frozen=True)
class Start:
    """What a worker is told first.

    party: 'module:function' and its arguments, by which a site makes its keys. path: where the
    coordinator finds modules; modules: those that hold tasks. environment: settings for Cupola.
    """

    seed: int
    mode: Mode
    cache: int
    party: tuple[str, Mapping[str, Any]] | None
    path: list[str]
    modules: list[str]
    environment: dict[str, str]
    version: str


@dataclass(frozen=True)
class Came:
    """What a worker sends: partial sums (see `received`) or sites' own answers, and what sites
    kept."""

    found: list[Any]
    kept: States


class Worker:
    """Answers for sites, on one model that is reused from site to site."""

    def __init__(self) -> None:
        self._done = 0

    def prepare(self, start: Start, host: Parcel) -> str:
        """Take the data; the version of Cupola here."""
        import torch

        from cupola import __version__

        if __version__ != start.version:
            return __version__
        sys.path += [place for place in start.path if place not in sys.path]
        os.environ.update(start.environment)
        torch.set_num_threads(1)
        self._modules = start.modules
        made, tasks = unpacked(host)
        register(tasks)
        self._store = _Carried()
        self._engine = InProcess(
            made,
            seed=start.seed,
            mode=start.mode,
            workers=1,
            cache=start.cache,
            parties=None if start.party is None else cache(partial(_party, *start.party)),
        )
        self._engine.store = self._store
        self._engine.accounts = None  # the coordinator charges sites, before it asks
        return __version__

    def progress(self) -> int:
        """How many sites were answered for; asked while others are being answered for."""
        return self._done

    def add(self, question: Question, sites: Sequence[int], states: States) -> Came:
        """The sum of these sites' answers."""
        question = self._begin(question, states)
        sums: dict[Layout, Partial] = {}
        for start in range(0, len(sites), TOGETHER):
            block = sites[start : start + TOGETHER]
            partials = self._engine.ask_together(question, block)
            if partials is None or any(is_broken(one, question) for one in partials):
                partials = add_up(question, self._counted(self._engine.ask(question, block)))
            else:
                self._done += len(block)
            for one in partials:
                layout = layout_of(one.sample)
                if layout in sums:
                    sums[layout].add(one)
                else:
                    sums[layout] = one
        # Samples take no memory until they are sent, so their layout is sent in their place.
        found = [(replace(one, sample={}), layout) for layout, one in sums.items()]
        return Came(found, self._store.written)

    def answer(self, question: Question, sites: Sequence[int], states: States) -> Came:
        """These sites' own answers."""
        question = self._begin(question, states)
        answers = list(self._counted(self._engine.ask(question, sites)))
        return Came(answers, self._store.written)

    def _begin(self, question: Question, states: States) -> Question:
        inside = question.options.get("inner")  # of a question around another one
        asked = [question.task, *([inside["task"]] if inside else [])]
        if not all(is_known(name) for name in asked):  # late, since it may take seconds
            for module in self._modules:
                with suppress(ImportError):  # its tasks stay unknown, and are refused as such
                    importlib.import_module(module)
        self._store.receive(question.step, {site: own(kept) for site, kept in states.items()})
        return replace(question, arrays=own(question.arrays))

    def _counted(self, answers: Answers) -> Answers:
        for site, answer in answers:
            self._done += 1
            yield site, answer


class _Carried(StateStore):
    """State that came with a question, and what goes back with the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.written: States = {}

    def receive(self, step: int, states: States) -> None:
        self._versions = {site: {step - 1: arrays} for site, arrays in states.items()}
        self.written = {}

    def write(self, site: int, step: int, arrays: Arrays, confirmed: int) -> None:
        super().write(site, step, arrays, confirmed)
        self.written[site] = arrays


def received(sums: Iterable[tuple[Partial, Layout]]) -> list[Partial]:
    """Partial sums with arrays of our own: those that arrive are read-only and keep Ray's
    memory."""
    return [replace(one, arrays=own(one.arrays), sample=_blank(layout)) for one, layout in sums]


def _party(make: str, agreed: Mapping[str, Any], site: int) -> Any:
    """A site's keys, made when they are asked for."""
    return imported(make)(site, None, **agreed)


def add_up(question: Question, answers: Answers) -> list[Partial]:
    """Sums of answers, one for each layout; the first also says who gave none."""
    totals: dict[Layout, Total] = {}
    failed: dict[int, str] = {}
    broken: list[int] = []
    for site, answer in usable(question, answers, failed, broken):
        total = totals.setdefault(layout_of(answer.arrays), Total())
        total.add(site, opened(answer, question))
    partials = [
        Partial(total.arrays, total.weight, total.sites, {}, _blank(layout))
        for layout, total in totals.items()
    ]
    if failed or not partials:
        partials.insert(0, Partial({}, 0.0, [], failed, {}, broken))
    return partials


def layout_of(arrays: Mapping[str, np.ndarray]) -> Layout:
    return tuple((name, array.dtype.str, array.shape) for name, array in arrays.items())


def _blank(layout: Layout) -> Arrays:
    """Arrays of this layout that take no memory."""
    return {name: np.broadcast_to(np.zeros((), kind), tuple(shape)) for name, kind, shape in layout}


def own(arrays: Mapping[str, np.ndarray]) -> Arrays:
    """Copies that may be written to."""
    return {name: np.array(array) for name, array in arrays.items()}


def parcel(value: Any) -> Parcel:
    """A host as bytes beside its large arrays, which workers of one machine then share."""
    import torch
    from ray import cloudpickle

    class Pickler(cloudpickle.Pickler):
        def reducer_override(self, thing: Any) -> Any:
            if type(thing) is torch.Tensor and _is_plain(thing):
                return _tensor, (thing.numpy(),)
            return super().reducer_override(thing)

    buffers: list[np.ndarray] = []

    def keep(buffer: pickle.PickleBuffer) -> None:
        raw = buffer.raw()
        buffers.append(np.frombuffer(raw, np.uint8) if raw.nbytes else np.zeros(0, np.uint8))

    body = io.BytesIO()
    Pickler(body, protocol=5, buffer_callback=keep).dump(value)
    return body.getvalue(), buffers


def unpacked(parcel: Parcel) -> Any:
    body, buffers = parcel
    return pickle.loads(body, buffers=buffers)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether numpy has this kind of tensor."""
    import torch

    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.requires_grad
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.dtype not in (torch.bfloat16, torch.complex32)
        and not tensor.dtype.is_complex
        and "float8" not in str(tensor.dtype)
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    import torch

    with warnings.catch_warnings():  # data are not written to, and cannot be
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
