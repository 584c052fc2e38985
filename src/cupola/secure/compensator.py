"""The compensator: a third party that opens seeds, adds up masks, and sees no answer.

The coordinator names the sites whose masked answers came and hands over their envelopes. The
compensator fixes these survivors for the step, durably and before the first mask leaves, and then
tells the sum of their masks, array by array and chunk by chunk. What it refuses:

1. a roster other than the pinned one;
2. an envelope that the named site did not sign for exactly this answer, or a site twice;
3. fewer sites than the roster's minimum, in all or for an array;
4. a step settled before, unless it is the same request, or a later attempt at the same question
   with the same sites and layouts: fresh masks over the same answers tell nothing new;
5. a question settled under another step, unless every site that was added, left out or has another
   layout agreed to that ('leaves'), since the difference of the totals is its answer. Of these
   totals, any combination that tells of other sites must still tell of the minimum at once, so
   an array is refused if fewer sites than the minimum are in all of them alike.

What is remembered are hashes and sites' names. The seeds of a settled step are held in memory and
gone with the process; the same request opens them again, and gives the same masks bit by bit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from cupola.errors import DataError, FederationError
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task
from cupola.secure.canonical import is_whole
from cupola.secure.checksum import to_bytes
from cupola.secure.envelope import EnvelopeError, Statement, unseal
from cupola.secure.identity import Identity
from cupola.secure.memory import Memory
from cupola.secure.roster import Roster
from cupola.secure.settlement import (
    CHECK,
    CHUNK,
    LATER_ATTEMPT,
    OTHER_SURVIVORS,
    SUM,
    Request,
    parts_from,
)
from cupola.secure.streams import P, add_mask, mask_key, mask_residue

__all__ = [
    "CHUNK",
    "Compensator",
    "CompensatorHost",
    "Request",
    "compensator_host",
]

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
    """The third party of a study. memory: the file of what it settled (None: in simulations)."""

    def __init__(self, identity: Identity, roster: Roster, memory: Path | None = None) -> None:
        if roster.compensator != identity.public:
            raise FederationError("these keys are not those of the roster's compensator")
        self.identity, self.roster = identity, roster
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
            survivors = self._survivors(request)
            attempts = self._earlier_attempts(request, survivors)
            alike = self._answered_alike(request, survivors)
            granted = self._granted(request, alike)
            if request.arrays and not granted:
                raise Declined(f"no array has at least {self.roster.minimum} sites")
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
        names = set() if held is None else set(_by_site(held["survivors"]))
        return [n for n, party in enumerate(self.roster.sites) if party.name in names]

    def latest(self, step: int) -> int:
        """The last attempt that a step was settled in; -1 if none was."""
        with self._lock:
            count, found = 0, -1
            while made := self._memory.get(f"attempt {step} {count}"):
                count, found = count + 1, max(found, made["attempt"])
        return found

    def close(self) -> None:
        """Let go of the memory, so that another process may take over."""
        self._memory.close()
        self._works = False

    # What is checked

    def _find(self, request: bytes) -> _Opened:
        if request not in self._opened:
            raise Declined("this request is not settled, or was long ago: settle it again")
        return self._opened[request]

    def _survivors(self, request: Request) -> dict[str, str]:
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
        names = (pinned.sites[site].name for site in request.sites)
        return {name: h.hex() for name, h in sorted(zip(names, request.hashes, strict=True))}

    def _earlier_attempts(self, request: Request, survivors: dict[str, str]) -> dict[str, int]:
        """Rule 4: requests that were granted for this step, and their attempts."""
        before = self._memory.get(f"step {request.step}")
        if before is None:
            return {}
        if before["question"] != request.question.hex():
            raise Declined("step settled for another question")
        if before["roster"] != request.roster.hex():
            raise Declined("step settled under another roster")
        if _by_site(before["survivors"]) != survivors:
            names = _listed(sorted(_by_site(before["survivors"])))
            raise Declined(f"{OTHER_SURVIVORS}: {names}")
        attempts: dict[str, int] = {}
        while made := self._memory.get(f"attempt {request.step} {len(attempts)}"):
            attempts[made["request"]] = made["attempt"]
        if request.digest.hex() not in attempts and request.attempt <= max(attempts.values()):
            raise Declined(LATER_ATTEMPT)
        return attempts

    def _answered_alike(self, request: Request, survivors: dict[str, str]) -> set[str]:
        """Rule 5: the sites that are in every answer to this question with the same layout."""
        alike, count = set(survivors), 0
        while (step := self._memory.get(f"question {request.question.hex()} {count}")) is not None:
            count += 1
            earlier = _by_site(self._memory.get(f"step {step}")["survivors"])
            everybody = survivors.keys() | earlier.keys()
            changed = {site for site in everybody if survivors.get(site) != earlier.get(site)}
            if not changed <= self.roster.leaves:
                raise Declined("question already answered for other survivors")
            alike -= changed
        return alike

    def _granted(self, request: Request, alike: set[str]) -> frozenset[str]:
        """Rule 3 per array, counting those that no difference of totals can single out."""
        names = [self.roster.sites[site].name in alike for site in request.sites]
        return frozenset(
            array
            for array in request.arrays
            if sum(names[place] for place in request.contributors(array)) >= self.roster.minimum
        )

    def _seeds(self, request: Request) -> list[bytes]:
        """Rule 2."""
        seeds = []
        for site, layout, envelope in zip(
            request.sites, request.hashes, request.envelopes, strict=True
        ):
            party = self.roster.sites[site]
            statement = Statement(
                study=self.roster.study,
                roster=self.roster.digest,
                step=request.step,
                attempt=request.attempt,
                question=request.question,
                layout=layout,
                site=party.name,
                terms=request.terms,
            )
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
        if attempts == 0:
            count = 0
            while self._memory.get(f"question {question} {count}") is not None:
                count += 1
            roster = request.roster.hex()
            by_layout = _by_layout(survivors)
            settled = {"question": question, "roster": roster, "survivors": by_layout}
            entries[f"step {step}"] = settled
            entries[f"question {question} {count}"] = step
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
