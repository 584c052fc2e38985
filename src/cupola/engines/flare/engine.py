"""The FLARE engine: the sites of a federation as a running job reaches them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from cupola.engines.child_process import LATE
from cupola.errors import PlanError
from cupola.federation.answering import read_answer
from cupola.federation.federation import Answers, Federation
from cupola.federation.ledger import Ledger
from cupola.federation.message import Question, encode_question, largest_answer
from cupola.federation.receipts import Receipts

PATIENCE = 600.0  # a party that is started anew takes part after the job was handed in again

#: (message, parties, seconds to wait) -> each party's bytes, or the code of why there are none
Carry = Callable[[bytes, Sequence[str], float], Mapping[str, bytes | str]]


class FlareSites(Federation):
    """names: of the sites, by number. timeout: seconds a site has for an answer; a late or dead
    one is left out and asked again at the next step, unless fewer than `needed` have answered:
    then they are waited for, `patience` seconds in all. receipts: the last of every party."""

    def __init__(
        self,
        carry: Carry,
        names: Sequence[str],
        *,
        quorum: float = 0.0,
        timeout: float = 120.0,
        needed: int = 1,
        patience: float = PATIENCE,
        ledger: Ledger | None = None,
        receipts: Receipts | None = None,
    ) -> None:
        super().__init__(len(names), quorum=quorum, ledger=ledger)
        self.carry, self.names, self.timeout = carry, tuple(names), timeout
        self.needed, self.patience = needed, patience
        self.receipts = receipts

    def ask(self, question: Question, sites: Sequence[int]) -> Answers:
        message, largest = encode_question(question), largest_answer(question)
        asked = [self.names[site] for site in sites]
        answers = dict(self.carry(message, asked, self.timeout))
        needed = min(max(self.needed, math.ceil(self.quorum * len(asked))), len(asked))
        began = time.monotonic()
        while time.monotonic() - began < self.patience:
            late = [name for name in asked if answers[name] == LATE]
            if len(asked) - len(late) >= needed:
                break
            answers |= self.carry(message, late, self.timeout)
        for site in sites:
            name = self.names[site]
            yield site, read_answer(answers[name], self.receipts, name, largest)


def masked(engine: Federation, third: Federation | None, roster: str) -> Federation:
    """An engine whose sums are masked. roster: as the study's people agreed on it; sites compare
    it with the one they pinned. third: the compensator, where the roster names one."""
    from cupola.secure.compensator_client import Masked
    from cupola.secure.pairwise import Pairwise
    from cupola.secure.roster import Roster

    agreed = Roster.from_json(roster)
    if agreed.compensator is None:
        return Pairwise(engine, agreed)
    if third is None:
        raise PlanError("the roster names a compensator, but the job does not")
    return Masked(engine, third, agreed)
