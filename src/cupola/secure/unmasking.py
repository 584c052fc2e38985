"""The coordinator's conversation with a compensator about one step, and how it can end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from cupola.errors import FederationError
from cupola.federation import Arrays, Failure, Federation, Question
from cupola.federation.ledger import COMPENSATOR, Entry
from cupola.federation.message import contribution_size, question_size, refusal
from cupola.secure import encoding
from cupola.secure.checksum import from_bytes
from cupola.secure.differences import EXPOSED
from cupola.secure.roster import Roster
from cupola.secure.settlement import (
    CHECK,
    LATER_ATTEMPT,
    OTHER_SURVIVORS,
    SUM,
    Request,
    chunks,
    unmask_question,
)


class Settled(FederationError):
    """The step was settled before, for other survivors."""


class Early(FederationError):
    """The step was settled in a later attempt: this clock was set back."""


class Newcomers(FederationError):
    """Sites that earlier totals of this kind did not have, so that the difference tells of them."""

    def __init__(self, text: str, sites: Sequence[int]) -> None:
        super().__init__(text)
        self.sites = sites


ATTEMPTS = 3  # at a sum that a site is missing from: who was killed may be back


class Missing(FederationError):
    """Sites that earlier totals of this kind had: without them the difference tells of them."""

    def __init__(self, question: Question, names: Sequence[str]) -> None:
        super().__init__(_missing(question, names))


def _missing(question: Question, names: Sequence[str]) -> str:
    """Why there is no total without these sites, and what to do."""
    who = ", ".join(names[:5])
    return (
        f"'{question.task}' in step {question.step}: no total is told without {who}, since its "
        "difference to earlier totals would tell of too few sites. Resume when all are back; if "
        "one is lost for good, all others can agree to go on without it (cupola site go-on). "
        "Where sites come and go, plan it: sum.changes = true"
    )


class Call:
    """A conversation with the compensator about one step."""

    def __init__(
        self, compensator: Federation, question: Question, request: Request, roster: Roster
    ) -> None:
        self.compensator, self.question, self.request = compensator, question, request
        self.roster = roster
        self.down = self.up = 0

    def settle(self, sums: Mapping[encoding.Entry, np.ndarray]) -> list[encoding.Entry]:
        """Fix the survivors; the arrays whose masks the compensator is ready to tell."""
        granted = self._ask(self.request.to_question())["granted"]
        yes = {name for name, told in zip(self.request.arrays, granted) if told}
        return [entry for entry in sums if entry.name in yes]

    def unmask(
        self, granted: Sequence[encoding.Entry], sums: Mapping[encoding.Entry, np.ndarray]
    ) -> dict[str, int]:
        """Take the sums of masks off, chunk by chunk; the sums of masks of the checksums."""
        sizes = {entry.name: (entry.bits, entry.size) for entry in granted}
        integers = {entry.name: sums[entry] for entry in granted}
        residues = {}
        for parts in chunks(sizes):
            told = self._ask(unmask_question(self.request, parts))
            for name, start, stop in parts:
                masks = told[SUM + name]
                if masks.dtype != integers[name].dtype:
                    raise FederationError("the compensator's answer has another width")
                integers[name][start:stop] -= masks
                if start == 0:
                    residues[name] = from_bytes(told[CHECK + name])
        return residues

    def _ask(self, question: Question) -> Arrays:
        ((_, answer),) = self.compensator.ask(question, [0])
        code = answer.code if isinstance(answer, Failure) else refusal(answer, question)
        if isinstance(answer, Failure) or code is not None:
            text = f"the compensator, in step {question.step}: {code}"
            if str(code).startswith(OTHER_SURVIVORS):
                raise Settled(text)
            if str(code).startswith(EXPOSED):
                raise self._exposed(str(code))
            raise Early(text) if code == LATER_ATTEMPT else FederationError(text)
        self.down += question_size(question)
        self.up += contribution_size(answer.arrays)
        return answer.arrays

    def _exposed(self, code: str) -> FederationError:
        """Who is missing, or came in addition, as far as the compensator says so."""
        told = [int(number) for number in code.partition(": [")[2].rstrip("]").split(",") if number]
        if told and set(told) <= set(self.request.sites):
            return Newcomers(code, told)
        names = [self.roster.sites[n].name for n in told if n < len(self.roster.sites)]
        return Missing(self.question, names)

    def entry(self) -> Entry:
        """For the ledger."""
        return Entry(
            step=self.question.step,
            round=self.question.round,
            task="unmask",
            kind="unmask",
            sites=[COMPENSATOR],
            failed={},
            bytes_down=self.down,
            bytes_up=self.up,
            reveals="to the compensator: who took part, names and sizes of arrays; "
            "to the coordinator: the sum of masks",
            protection="masks are random numbers",
        )
