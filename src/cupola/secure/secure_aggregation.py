"""Secure aggregation (SecAgg): the coordinator's driver for every protocol that adds up answers.

A protocol is a list of phases: what is asked of whom, and what is made of the answers. The driver
carries them out for one attempt, tries again where that can help, and books what was sent. The
protocols are `compensator_client` (masks that a third party takes off), `pairwise` (masks that
cancel between sites) and `open_sums` (none).
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from cupola.errors import FederationError
from cupola.federation.federation import Failure, Federation, Total
from cupola.federation.ledger import Entry, common
from cupola.federation.message import (
    Arrays,
    Contribution,
    Question,
    contribution_size,
    question_size,
    refusal,
)
from cupola.federation.replay import Replay
from cupola.secure.roster import Roster

ATTEMPTS = 3  # at a sum that a site is missing from: who was killed may be back
TOO_FEW = "too few sites for a masked sum"
STAYS_OUT = "it dropped out of earlier totals, and stays out"


class TooFew(Exception):
    """Not enough sites to go on; nobody has told anything yet."""


class Newcomers(FederationError):
    """Sites that earlier totals of this kind did not have, so that the difference tells of them."""

    def __init__(self, text: str, sites: Sequence[int]) -> None:
        super().__init__(text)
        self.sites = sites


class Missing(FederationError):
    """Sites that earlier totals of this kind had: without them the difference tells of them."""

    def __init__(self, question: Question, names: Sequence[str]) -> None:
        super().__init__(
            f"'{question.task}' in step {question.step}: no total is told without "
            f"{', '.join(names[:5])}, since its difference to earlier totals would tell of too few "
            "sites. Resume when all are back; if one is lost for good, all others can agree to go "
            "on without it (cupola site go-on). Where sites come and go, plan it: "
            "sum.changes = true"
        )


def new_attempt(least: int = 0) -> tuple[int, bytes]:
    """The number of an attempt and the key of its checksums, which no compensator sees. Later
    attempts have higher numbers, after a crash, too."""
    return max(time.time_ns() // 1000, least), secrets.token_bytes(32)


def answers_of(
    reach: Federation,
    question: Question,
    parties: Sequence[int],
    unusable: Callable[[Contribution, Question], str | None] = refusal,
) -> Iterator[tuple[int, Contribution | Failure]]:
    """What each party answers, or why that cannot be used."""
    for party, answer in reach.ask(question, parties):
        code = None if isinstance(answer, Failure) else unusable(answer, question)
        yield party, answer if code is None else Failure(code, broken=True)


class Aggregation(ABC):
    """One attempt at a sum.

    sites: who is asked. failed: those without a usable answer, and why; broken: of these, who sent
    what cannot be used. asked: the question for the answers, once it was asked; sizes: bytes of
    answers. down, up: bytes of all other messages, by party.
    """

    beside = ("", "")  # for the ledger: what the other messages are, and what they reveal

    def __init__(self, engine: Federation, roster: Roster, question: Question) -> None:
        self.engine, self.roster, self.inner = engine, roster, question
        self.sites: list[int] = []
        self.failed: dict[int, str] = {}
        self.broken: list[int] = []
        self.asked: Question | None = None
        self.sizes: dict[int, int] = {}
        self.down: Counter[int] = Counter()
        self.up: Counter[int] = Counter()

    @property
    @abstractmethod
    def charged(self) -> Question:
        """The question whose answer costs sites privacy."""

    @property
    @abstractmethod
    def phases(self) -> list[Callable[[], None]]:
        """One after another; TooFew where the sites that are left do not suffice."""

    @abstractmethod
    def total(self) -> Total:
        """What the answers add up to, after the last phase."""

    def unusable(self, answer: Contribution, question: Question) -> str | None:
        """Why an answer cannot be used."""
        return refusal(answer, question)

    def admit(self, sites: Sequence[int]) -> None:
        """Start with the sites that can afford to answer."""
        self.failed |= self.engine.admit(self.charged, sites)
        self.sites = [site for site in sites if site not in self.failed]

    def ask(
        self, question: Question, sites: Sequence[int], *, silent: bool = False
    ) -> Iterator[tuple[int, Arrays]]:
        """Usable answers. silent: a failure costs a site nothing, it has done its part already.
        What the question for the answers takes is the sum's own; the rest is booked beside it."""
        size, is_answer = question_size(question), question is self.asked
        for site, answer in answers_of(self.engine, question, sites, self.unusable):
            if not is_answer:
                self.down[site] += size
            if isinstance(answer, Failure):
                if not silent:
                    self.failed[site] = answer.code
                    self.broken += [site] if answer.broken else []
                continue
            if is_answer:
                self.sizes[site] = contribution_size(answer.arrays)
            else:
                self.up[site] += contribution_size(answer.arrays)
            yield site, answer.arrays


class Wrapped(Federation):
    """An engine with something around it, over the sites of a roster."""

    def __init__(self, engine: Federation, roster: Roster) -> None:
        super().__init__(len(engine), quorum=engine.quorum, ledger=engine.ledger)
        if len(roster.sites) != len(engine):
            raise FederationError(
                f"the roster names {len(roster.sites)} sites, the federation has {len(engine)}"
            )
        self.engine, self.roster = engine, roster

    def enter(
        self,
        about: Question,
        kind: str,
        sites: list[int],
        down: int,
        up: Sequence[int],
        failed: dict[int, str] | None = None,
    ) -> None:
        """An entry of the ledger. about: a question that says what was done, in the words of the
        ledger. down, up: bytes to each site and from each."""
        self.ledger.add(
            Entry(
                step=about.step,
                round=about.round,
                task=about.task,
                kind=kind,
                sites=sites,
                failed=failed or {},
                bytes_down=down,
                bytes_up=common(up),
                reveals=about.reveals,
                protection=about.protection,
            )
        )

    def follow(self, replay: Replay) -> None:
        self.engine.follow(replay)

    def bring(self, question: Question) -> None:
        self.engine.bring(question)

    def gather(self, question: Question, sites: Sequence[int]) -> dict[int, Contribution]:
        return self.engine.gather(question, sites)

    def ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        return self.engine.ask(question, sites)

    def confirm(self, step: int) -> None:
        self.engine.confirm(step)

    def export(self, step: int) -> Arrays:
        return self.engine.export(step)

    def restore(self, step: int, arrays: Arrays) -> None:
        self.engine.restore(step, arrays)

    def close(self) -> None:
        self.engine.close()


class SecureSums(Wrapped):
    """An engine whose sums are a protocol's; gather asks each site unmasked, as ever."""

    def __init__(self, engine: Federation, roster: Roster) -> None:
        super().__init__(engine, roster)
        self._out: dict[str, set[int]] = {}  # task -> sites that stay out of its totals

    @abstractmethod
    def aggregation(self, question: Question, least: int = 0) -> Aggregation:
        """A new attempt at a sum. least: the smallest number it may have."""

    @property
    def minimum(self) -> int:
        """Sites that a total must have."""
        return self.roster.minimum

    def protection(self, question: Question) -> str:
        """What keeps an answer from telling more, for the ledger."""
        return protection(question.protection, self.roster)

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        """Add the contributions of these sites; nobody sees a single one."""
        question = replace(question, confirmed=self.engine.confirmed_for(question))
        sites = sorted(sites)
        broken: list[int] = []
        refused = self.engine.deviations(question, sites)
        if len(sites) < self.minimum:
            refused = refused or dict.fromkeys(sites, TOO_FEW)
        if refused:
            total = Total(failed=refused)
            self._book_sum(None, question, total, [])
        else:
            total, broken = self._attempts(question, sites)
        self.require_quorum(question, len(total.sites), len(sites), total.failed, broken)
        self.engine.heard(question, total if total.sites else None)
        return total

    def _attempts(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        """Attempt after attempt: without sites that earlier totals did not have, and a few times in
        case that sites which they had come back. The total, and who sent broken answers."""
        out = set() if self.roster.changes else self._out.setdefault(question.task, set())
        left = ATTEMPTS
        while True:
            try:
                total, broken = self._attempt(question, [site for site in sites if site not in out])
            except Newcomers as found:
                out.update(found.sites)
                continue
            except Missing:
                left -= 1
                if not left:
                    raise
                continue
            total.failed |= dict.fromkeys(out.intersection(sites), STAYS_OUT)
            return total, broken

    def _attempt(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        return self._carry_out(question, sites)

    def _carry_out(
        self, question: Question, sites: Sequence[int], least: int = 0
    ) -> tuple[Total, list[int]]:
        """All phases, once. least: the smallest number that this attempt may have."""
        attempt, total = self.aggregation(question, least), Total()
        try:
            attempt.admit(sites)
            for phase in attempt.phases:
                phase()
            total = attempt.total()
        except TooFew as few:
            silent = [site for site in sites if site not in attempt.failed]
            attempt.failed |= dict.fromkeys(silent, str(few))
        finally:
            self._book_beside(attempt)
        total.failed = attempt.failed
        sizes = [attempt.sizes[site] for site in total.sites]
        self._book_sum(attempt.asked, question, total, sizes)
        return total, attempt.broken

    def _book_sum(
        self, asked: Question | None, inner: Question, total: Total, sizes: list[int]
    ) -> None:
        """Under the name of what was asked. asked: None if nobody was."""
        down = 0 if asked is None else question_size(asked)
        about = replace(inner, protection=self.protection(inner))
        self.enter(about, "sum", total.sites, down, sizes, total.failed)

    def _book_beside(self, attempt: Aggregation) -> None:
        """What keys, masks and signatures took: an entry for parties that were sent as much."""
        task, reveals = attempt.beside
        about = replace(
            attempt.inner, task=task, reveals=reveals, protection="masks are random numbers"
        )
        for size in sorted(set(attempt.down.values())):
            parties = sorted(party for party, sent in attempt.down.items() if sent == size)
            self.enter(about, "unmask", parties, size, [attempt.up[party] for party in parties])


def protection(own: str, roster: Roster) -> str:
    """What a masked sum adds to a question's own protection, in a few words."""
    change = "; sites may change: differences can tell of one" if roster.changes else ""
    masked = f"masked sum of at least {roster.minimum} sites{change}"
    return masked if own == "none" else f"{own}; {masked}"
