"""Masked sums with a compensator: the coordinator's side (after sPLINK, 004 chapter 4).

Sites send integers under masks, and the masks' seeds under seal. The compensator, who never sees
an answer, opens the seeds of those whose answers came and tells the sum of their masks, once per
step. The coordinator takes it off: what is left is the total, and nothing else can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from cupola.errors import FederationError
from cupola.federation.federation import Failure, Federation, Total
from cupola.federation.ledger import COMPENSATOR
from cupola.federation.message import (
    Arrays,
    Contribution,
    Question,
    Spec,
    contribution_size,
    question_size,
)
from cupola.secure.checksum import P, checksum, from_bytes
from cupola.secure.compensator_messages import (
    CHECK,
    LATER_ATTEMPT,
    OTHER_SURVIVORS,
    SUM,
    Request,
    chunks,
    settled_question,
    unmask_question,
)
from cupola.secure.differences import EXPOSED
from cupola.secure.encoding import Entry, Layout, outline
from cupola.secure.envelope import ENVELOPE
from cupola.secure.member import terms_hash
from cupola.secure.roster import Roster
from cupola.secure.secure_aggregation import (
    TOO_FEW,
    Aggregation,
    Missing,
    Newcomers,
    SecureSums,
    TooFew,
    answers_of,
    new_attempt,
)
from cupola.secure.wrapped_question import (
    ANSWER,
    layout_of,
    outer_question,
    present,
    question_hash,
    total_from,
)


class Settled(FederationError):
    """The step was settled before, for other survivors."""


class Early(FederationError):
    """The step was settled in a later attempt: this clock was set back."""


class Masked(SecureSums):
    """Masked sums over an engine. compensator: the third party, as a federation of one."""

    def __init__(self, engine: Federation, compensator: Federation, roster: Roster) -> None:
        super().__init__(engine, roster)
        self.compensator = compensator

    def aggregation(self, question: Question, least: int = 0) -> Aggregation:
        return CompensatedSum(self.engine, self.compensator, self.roster, question, least)

    def _attempt(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        try:
            return self._in_time(question, sites)
        except Settled:
            # Settled before a crash, for other survivors: it can be told for those only.
            before, _ = self._settled(question.step)
            if not set(before) <= set(sites):
                raise
            total, broken = self._in_time(question, before)
            others = [site for site in sites if site not in before]
            total.failed |= dict.fromkeys(others, "the step was settled without it")
            return total, broken

    def _in_time(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        try:
            return self._carry_out(question, sites)
        except Early:
            _, latest = self._settled(question.step)
            return self._carry_out(question, sites, latest + 1)

    def _settled(self, step: int) -> tuple[list[int], int]:
        """For whom a step was settled, and in which attempt."""
        asked = settled_question(step, len(self.roster.sites))
        ((_, answer),) = answers_of(self.compensator, asked, [0])
        if isinstance(answer, Failure):
            raise FederationError("the compensator does not say for whom a step was settled")
        sites = [int(site) for site in np.flatnonzero(answer.arrays["settled"])]
        return sites, int(answer.arrays["attempt"])

    def close(self) -> None:
        super().close()
        self.compensator.close()


class CompensatedSum(Aggregation):
    """One attempt: sites answer, the compensator settles who is in, and tells their masks."""

    beside = (
        "unmask",
        "to the compensator: who took part, names and sizes of arrays; "
        "to the coordinator: the sum of masks",
    )

    def __init__(
        self,
        engine: Federation,
        compensator: Federation,
        roster: Roster,
        question: Question,
        least: int = 0,
    ) -> None:
        super().__init__(engine, roster, question)
        self.compensator = compensator
        self.number, self.key = new_attempt(least)
        self.layout = layout_of(question, len(roster.sites))
        self.sums: dict[Entry, np.ndarray] = {}
        self.checks: dict[Entry, int] = {}
        self.own: dict[int, Layout] = {}  # survivor -> the entries it sent
        self.envelopes: list[bytes] = []
        self.granted: list[Entry] = []
        self.spent: tuple[int, int] = (0, 0)  # bytes to and from the compensator

    @cached_property
    def charged(self) -> Question:
        return masked_question(self.inner, self.layout, self.roster.digest, self.number, self.key)

    @property
    def phases(self) -> list[Callable[[], None]]:
        return [self.collect, self.settle, self.unmask]

    def collect(self) -> None:
        """Masked answers, added up as they come."""
        self.asked = self.charged
        for site, arrays in self.ask(self.asked, self.sites):
            self.own[site] = present(self.layout, arrays, ANSWER)
            for entry in self.own[site]:
                integers, check = (
                    arrays[ANSWER + entry.name],
                    from_bytes(arrays[CHECK + entry.name]),
                )
                if entry in self.sums:
                    self.sums[entry] += integers  # modulo 2^bits, as integers of that width do
                else:
                    self.sums[entry] = integers.copy()
                self.checks[entry] = (self.checks.get(entry, 0) + check) % P
            self.envelopes.append(arrays["envelope"].tobytes())
        if len(self.own) < self.roster.minimum:
            raise TooFew(TOO_FEW)

    def settle(self) -> None:
        """Have the survivors fixed; note the arrays whose masks the compensator will tell."""
        granted = self._call(self.request.to_question())["granted"]
        yes = {name for name, told in zip(self.request.arrays, granted) if told}
        self.granted = [entry for entry in self.sums if entry.name in yes]

    def unmask(self) -> None:
        """Take the sums of masks off, chunk by chunk."""
        entries = {entry.name: entry for entry in self.granted}
        for parts in chunks({entry.name: (entry.bits, entry.size) for entry in self.granted}):
            told = self._call(unmask_question(self.request, parts))
            for name, start, stop in parts:
                integers, masks = self.sums[entries[name]], told[SUM + name]
                if masks.dtype != integers.dtype:
                    raise FederationError("the compensator's answer has another width")
                integers[start:stop] -= masks
                if start == 0:
                    self.checks[entries[name]] -= from_bytes(told[CHECK + name])

    def total(self) -> Total:
        for entry in self.granted:
            if checksum(self.key, entry.name, self.sums[entry]) != self.checks[entry] % P:
                raise FederationError(
                    f"masked sum of '{entry.name}' in step {self.inner.step}: the checksum is "
                    "wrong, so the compensator's or a site's numbers were changed on the way; "
                    "nothing was used"
                )
        # Booked from here on: an attempt that failed is made again.
        self.down[COMPENSATOR], self.up[COMPENSATOR] = self.spent
        sums = {entry: self.sums[entry] for entry in self.granted}
        return total_from(self.inner, sums, list(self.own), self.failed)

    def unusable(self, answer: Contribution, question: Question) -> str | None:
        code = super().unusable(answer, question)
        return self._incomplete(answer) if code is None else code

    def _incomplete(self, answer: Contribution) -> str | None:
        """Why an answer of allowed arrays is not one masked answer."""
        arrays, own = answer.arrays, present(self.layout, answer.arrays, ANSWER)
        names = {prefix + entry.name for entry in own for prefix in (ANSWER, CHECK)}
        whole = own[:2] == self.layout[:2]  # the weight, and how many numbers were cut off
        if "envelope" not in arrays or not whole:
            return "missing parts of a masked answer"
        if answer.weight != 1.0:
            return "invalid weight"
        if set(arrays) != names | {"envelope"}:
            return "missing parts of a masked answer"
        if arrays["envelope"].dtype != np.uint8:
            return "ill-shaped array 'envelope'"
        for entry in own:
            if arrays[ANSWER + entry.name].dtype != entry.dtype:
                return f"ill-shaped array '{entry.name}'"
        try:
            for entry in own:
                from_bytes(arrays[CHECK + entry.name])
        except FederationError as error:
            return str(error)
        return None

    @cached_property
    def request(self) -> Request:
        """The survivors, once all have answered."""
        layouts = list(dict.fromkeys(self.own.values()))
        return Request(
            study=self.roster.study,
            roster=self.roster.digest,
            step=self.inner.step,
            attempt=self.number,
            question=question_hash(self.inner),
            terms=terms_hash(self.layout, self.key),
            sites=tuple(self.own),
            outlines=tuple(outline(own) for own in layouts),
            layouts=tuple(layouts.index(own) for own in self.own.values()),
            envelopes=tuple(self.envelopes),
        )

    def _call(self, question: Question) -> Arrays:
        """The compensator's answer; every way in which it refuses is an error of its own."""
        ((_, answer),) = answers_of(self.compensator, question, [0])
        if isinstance(answer, Failure):
            raise self._refused(answer.code)
        down, up = self.spent
        self.spent = (down + question_size(question), up + contribution_size(answer.arrays))
        return answer.arrays

    def _refused(self, code: str) -> FederationError:
        text = f"the compensator, in step {self.inner.step}: {code}"
        if code.startswith(OTHER_SURVIVORS):
            return Settled(text)
        if code.startswith(EXPOSED):
            return self._exposed(code)
        return Early(text) if code == LATER_ATTEMPT else FederationError(text)

    def _exposed(self, code: str) -> FederationError:
        """Who is missing, or came in addition, as far as the compensator says so."""
        told = [int(number) for number in code.partition(": [")[2].rstrip("]").split(",") if number]
        if told and set(told) <= set(self.own):
            return Newcomers(code, told)
        names = [self.roster.sites[n].name for n in told if n < len(self.roster.sites)]
        return Missing(self.inner, names)


def masked_question(
    question: Question, layout: Layout, roster: bytes, attempt: int, key: bytes
) -> Question:
    """Ask for an answer under a mask. roster: its digest. key: of the checksums."""
    expects = {ANSWER + entry.name: Spec((entry.size,), "int") for entry in layout}
    expects |= {CHECK + entry.name: Spec((16,), "int") for entry in layout}
    expects["envelope"] = Spec((ENVELOPE,), "int")
    options = {"roster": roster.hex(), "attempt": attempt, "check": key.hex()}
    return outer_question("masked", question, expects, options)
