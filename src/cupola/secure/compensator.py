"""The compensator: a third party that opens seeds, adds up masks, and sees no answer.

The coordinator names the sites whose masked answers came and hands over their envelopes. The
compensator fixes these survivors for the step, durably and before the first mask leaves, and then
tells the sum of their masks, array by array and chunk by chunk. What it refuses:

1. a roster other than the pinned one;
2. an envelope that the named site did not sign for exactly this answer, or a site twice;
3. fewer sites than the roster's minimum, in all or for an array;
4. a step settled before, unless it is the same request, or a later attempt at the same question
   with the same sites and layouts: fresh masks over the same answers tell nothing new;
5. survivors for whom a combination of this total and those told before would tell of fewer sites
   than the minimum (see `differences`). Compared are all totals of the study, array by array; of a
   roster whose sites may change, only those of the very same question;
6. a site that the others go on without (see `going_on`).

What is remembered are hashes and sites' names. The seeds of a settled step are held in memory and
gone with the process; the same request opens them again, and gives the same masks bit by bit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from cupola.errors import DataError, FederationError
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task
from cupola.secure.canonical import is_whole
from cupola.secure.checksum import to_bytes
from cupola.secure.compensator_messages import (
    CHECK,
    CHUNK,
    LATER_ATTEMPT,
    OTHER_SURVIVORS,
    SUM,
    Request,
    parts_from,
)
from cupola.secure.differences import EXPOSED, Sets, behind, exposed
from cupola.secure.durable_dict import Memory
from cupola.secure.envelope import EnvelopeError, unseal
from cupola.secure.identity import Identity
from cupola.secure.mask_stream import P, add_mask, mask_key, mask_residue
from cupola.secure.roster import Roster

_OPEN = 4  # settled requests whose seeds are held


class _Opened:
    """The seeds of a settled request, and the arrays whose masks may be told."""

    def __init__(self, request: Request, seeds: list[bytes], granted: frozenset[str]) -> None:
        self.request, self.granted = request, granted
        self._seeds = seeds
        self._keys: dict[str, list[bytes]] = {}

    def keys(self, array: str) -> list[bytes]:
        """The mask keys of an array's contributors; kept for the next part."""
        request = self.request
        if array not in self.granted:
            raise Declined(f"array '{array}' was not granted")
        if array not in self._keys:
            study, step, attempt = request.study, request.step, request.attempt
            self._keys[array] = [
                mask_key(self._seeds[place], study=study, step=step, attempt=attempt, array=array)
                for place in request.contributors(array)
            ]
        return self._keys[array]


class Compensator:
    """The third party of a study. memory: the file of what it settled (None: in simulations).
    gone: says which sites the others go on without."""

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        memory: Path | None = None,
        gone: Callable[[], frozenset[str]] = frozenset,
    ) -> None:
        if roster.compensator != identity.public:
            raise FederationError("these keys are not those of the roster's compensator")
        self.identity, self.roster, self._gone = identity, roster, gone
        self._opened: OrderedDict[bytes, _Opened] = OrderedDict()
        self._lock = threading.Lock()
        self._memory = self.memory = Memory(memory)
        self._works = True
        if self._memory.setdefault("study", roster.study) != roster.study:
            self.close()
            raise DataError("the compensator's memory belongs to another study; name this study's")

    def settle(self, request: Request) -> dict[str, bool]:
        """Fix the survivors of a step; the arrays whose masks will be told. Declined otherwise."""
        with self._lock:
            gone = self._gone()
            survivors = self._survivors(request, gone)
            attempts = self._earlier_attempts(request, survivors, gone)
            granted = self._granted(request)
            if request.arrays and not granted:
                raise Declined(f"no array has at least {self.roster.minimum} sites")
            self._keep_crowds(request, survivors, gone)
            seeds = self._seeds(request)
            if request.digest.hex() not in attempts:
                self._remember(request, survivors, len(attempts))
            self._opened[request.digest] = _Opened(request, seeds, granted)
            while len(self._opened) > _OPEN:
                self._opened.popitem(last=False)
            return {name: name in granted for name in request.arrays}

    def unmask(self, request: bytes, array: str, start: int, stop: int) -> np.ndarray:
        """The sum of the contributors' masks of numbers `start` to `stop` of an array."""
        with self._lock:
            opened = self._find(request)
            keys = opened.keys(array)
            bits, size = opened.request.arrays[array]
            if not (0 <= start <= stop <= size and (stop - start) * bits <= 8 * CHUNK):
                raise Declined(f"array '{array}' has no such chunk")
            total = np.zeros(stop - start, f"int{bits}")
            for key in keys:
                add_mask(total, key, start)
            return total

    def width(self, request: bytes, array: str) -> int:
        """Bytes of one number of an array."""
        with self._lock:
            opened = self._find(request)
            opened.keys(array)  # refuses what was not granted
            return opened.request.arrays[array][0] // 8

    def residue(self, request: bytes, array: str) -> int:
        """The sum, modulo P, of the masks of the contributors' checksums."""
        with self._lock:
            return sum(mask_residue(key) for key in self._find(request).keys(array)) % P

    def settled(self, step: int) -> list[int]:
        """The survivors of a step, as numbers in the roster; empty if it is not settled."""
        with self._lock:
            held = self._memory.get(f"step {step}")
        names = set() if held is None else _by_site(held["survivors"]).keys() - self._gone()
        return self.roster.numbers(names)

    def latest(self, step: int) -> int:
        """The last attempt that a step was settled in; -1 if none was."""
        with self._lock:
            made = self._memory.listed(f"attempt {step} ")
        return max((attempt["attempt"] for attempt in made), default=-1)

    def close(self) -> None:
        """Let go of the memory, so that another process may take over."""
        self._memory.close()
        self._works = False

    # What is checked

    def _find(self, request: bytes) -> _Opened:
        if request not in self._opened:
            raise Declined("this request is not settled, or was long ago: settle it again")
        return self._opened[request]

    def _survivors(self, request: Request, gone: frozenset[str]) -> dict[str, str]:
        """Name and signed layout of each site, after what can be seen without opening anything."""
        if not self._works:
            raise Declined("the compensator cannot write its memory")
        pinned = self.roster
        if request.study != pinned.study or request.roster != pinned.digest:
            raise Declined("roster differs")
        if not all(0 <= site < len(pinned.sites) for site in request.sites):
            raise Declined("a site is not in the roster")
        if len(set(request.sites)) < len(request.sites):
            raise Declined("site twice")
        if len(request.sites) < pinned.minimum:
            raise Declined(f"too few sites ({len(request.sites)} of at least {pinned.minimum})")
        names = [pinned.sites[site].name for site in request.sites]
        if not gone.isdisjoint(names):
            raise self._would_expose(gone.intersection(names))
        return {name: h.hex() for name, h in sorted(zip(names, request.hashes, strict=True))}

    def _earlier_attempts(
        self, request: Request, survivors: dict[str, str], gone: frozenset[str]
    ) -> dict[str, int]:
        """Rule 4: requests that were granted for this step, and their attempts. A step that was
        settled with a site that is gone can be tried again without it."""
        before = self._memory.get(f"step {request.step}")
        if before is None:
            return {}
        if before["question"] != request.question.hex():
            raise Declined("step settled for another question")
        if before["roster"] != request.roster.hex():
            raise Declined("step settled under another roster")
        held = _by_site(before["survivors"])
        if {site: held[site] for site in held.keys() - gone} != survivors:
            raise Declined(f"{OTHER_SURVIVORS}: {_listed(sorted(held))}")
        made = self._memory.listed(f"attempt {request.step} ")
        attempts = {attempt["request"]: attempt["attempt"] for attempt in made}
        if request.digest.hex() not in attempts and request.attempt <= max(attempts.values()):
            raise Declined(LATER_ATTEMPT)
        return attempts

    def _keep_crowds(
        self, request: Request, survivors: dict[str, str], gone: frozenset[str]
    ) -> None:
        """Rule 5."""
        arrays = {hash: [a for a, _, _ in o] for hash, o in _outlines(request).items()}
        new = self._behind(survivors, arrays)
        totals = self._memory.listed(self._family(request.question))
        told = [self._behind(_by_site(held)) for held in totals]
        found = exposed(told, new, self.roster.minimum, self.roster.leaves | gone)
        if found:
            # Those who are missing matter: who came in addition can be left out.
            raise self._would_expose(found - survivors.keys() or found)

    def _behind(self, sites: dict[str, str], arrays: dict[str, list[str]] | None = None) -> Sets:
        """The sites behind each array of a total. arrays: of layouts, unless remembered."""
        senders: dict[str, list[str]] = {}
        for site, layout in sites.items():
            known = self._memory.get(f"layout {layout}") if arrays is None else arrays[layout]
            for array in known:
                senders.setdefault(array, []).append(site)
        return behind(senders, self.roster.minimum)

    def _family(self, question: bytes) -> str:
        """Under which the survivors of each kind of total are remembered: of the whole study, or
        of this question if sites may change."""
        return f"question {question.hex()} " if self.roster.changes else "total "

    def _would_expose(self, names: frozenset[str]) -> Declined:
        return Declined(f"{EXPOSED}: {self.roster.numbers(names)[:30]}")

    def _granted(self, request: Request) -> frozenset[str]:
        """Rule 3 per array."""
        return frozenset(
            array
            for array in request.arrays
            if len(request.contributors(array)) >= self.roster.minimum
        )

    def _seeds(self, request: Request) -> list[bytes]:
        """Rule 2."""
        seeds, facts = [], (request.step, request.attempt, request.question)
        parts = zip(request.sites, request.hashes, request.envelopes, strict=True)
        for site, layout, envelope in parts:
            party = self.roster.sites[site]
            statement = self.roster.statement(party.name, *facts, layout, request.terms)
            try:
                seeds.append(unseal(statement, envelope, party, self.identity))
            except EnvelopeError:
                raise Declined(f"bad envelope from site {party.name}") from None
        return seeds

    def _remember(self, request: Request, survivors: dict[str, str], attempts: int) -> None:
        """All in one line, on disk before anything is told."""
        step, question = request.step, request.question.hex()
        made = {"attempt": request.attempt, "request": request.digest.hex()}
        entries: dict[str, Any] = {f"attempt {step} {attempts}": made}
        by_layout = _by_layout(survivors)
        family = self._family(request.question)
        told = self._memory.listed(family)
        if by_layout not in told:
            entries[f"{family}{len(told)}"] = by_layout
            for hash, outline in _outlines(request).items():
                entries[f"layout {hash}"] = [array for array, _, _ in outline]
        if attempts == 0:
            roster = request.roster.hex()
            settled = {"question": question, "roster": roster, "survivors": by_layout}
            entries[f"step {step}"] = settled
        try:
            self._memory.update(entries)
        except OSError:
            self.close()  # what is on disk is unknown: a restart reads it
            raise Declined("the compensator cannot write its memory") from None


class CompensatorHost:
    """The compensator as the only site of a federation of its own."""

    def __init__(self, compensator: Compensator) -> None:
        self.compensator = compensator

    def __len__(self) -> int:
        return 1

    def data(self, site: int) -> Compensator:  # noqa: ARG002
        return self.compensator

    def workspace(self) -> None:
        return None

    def close(self) -> None:
        self.compensator.close()


def compensator_host(
    roster: str, *, key: str | None = None, seed: int | None = None, memory: str | None = None
) -> CompensatorHost:
    """For engines that start the compensator elsewhere. roster: its JSON text. key: the key file;
    or, in simulations, seed: of the plan. memory: the folder for what it must not forget."""
    pinned = Roster.from_json(roster)
    if pinned.compensator is None:
        raise FederationError("the roster names no compensator")
    if key is not None:
        identity = Identity.open(Path(key))
    elif seed is not None:
        identity = Identity.simulated(seed, pinned.compensator.name)
    else:
        raise FederationError("the compensator needs a key file")
    path = None if memory is None else Path(memory) / "compensator.jsonl"
    return CompensatorHost(Compensator(identity, pinned, path))


@task("settle")
def settle(site: SiteContext, question: Question) -> Contribution:
    """Fix the survivors of a step: which arrays are granted, in order of appearance."""
    granted = _compensator(site).settle(Request.from_question(question))
    return Contribution({"granted": np.array(list(granted.values()), bool)})


@task("unmask")
def unmask(site: SiteContext, question: Question) -> Contribution:
    """The sums of masks of some parts of arrays, and of the masks of checksums of those that begin
    here. Together at most CHUNK bytes."""
    party = _compensator(site)
    request, parts = parts_from(question)
    if sum(party.width(request, array) * (stop - start) for array, start, stop in parts) > CHUNK:
        raise Declined("more than a chunk")
    arrays = {}
    for array, start, stop in parts:
        arrays[SUM + array] = party.unmask(request, array, start, stop)
        if start == 0:
            arrays[CHECK + array] = to_bytes(party.residue(request, array))
    return Contribution(arrays)


@task("settled")
def settled(site: SiteContext, question: Question) -> Contribution:
    """Who a step was settled for, and in which attempt, for a coordinator that lost its own memory
    or whose clock was set back."""
    party, step = _compensator(site), question.options.get("step", -1)
    if not is_whole(step):
        raise Declined("request is not well formed")
    flags = np.zeros(len(party.roster.sites), bool)
    flags[party.settled(step)] = True
    return Contribution({"settled": flags, "attempt": np.array(party.latest(step), np.int64)})


for _asked in (settle, unmask, settled):  # its own memory says what it tells twice
    _asked.protocol = True


def _compensator(site: SiteContext) -> Compensator:
    if not isinstance(site.data, Compensator):
        raise Declined("this site is no compensator")
    return site.data


def _outlines(request: Request) -> dict[str, Any]:
    """The distinct outlines of a request, by what sites sign of them."""
    return {request.hashes[request.layouts.index(n)].hex(): request.outlines[n]
            for n in sorted(set(request.layouts))}  # fmt: skip


def _by_layout(survivors: dict[str, str]) -> dict[str, list[str]]:
    """Site -> layout, turned round: a line of memory names a layout once."""
    found: dict[str, list[str]] = {}
    for site, layout in survivors.items():
        found.setdefault(layout, []).append(site)
    return found


def _by_site(by_layout: dict[str, list[str]]) -> dict[str, str]:
    return {site: layout for layout, sites in by_layout.items() for site in sites}


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(names[:10]) + more
