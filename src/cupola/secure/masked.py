"""Masked sums with a compensator: the coordinator's side (after sPLINK, 004 chapter 4).

Sites send integers under masks, and the masks' seeds under seal. The compensator, who never sees
an answer, opens the seeds of those whose answers came and tells the sum of their masks, once per
step. The coordinator takes it off: what is left is the total, and nothing else can be read.
"""

from __future__ import annotations

import secrets
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from cupola.errors import FederationError
from cupola.federation import Arrays, Contribution, Failure, Federation, Question, Spec, Total
from cupola.federation.ledger import Entry, common
from cupola.federation.message import contribution_size, question_size, refusal
from cupola.federation.replay import Replay
from cupola.secure import encoding
from cupola.secure.checksum import P, checksum, from_bytes
from cupola.secure.encoding import Layout
from cupola.secure.envelope import ENVELOPE
from cupola.secure.hidden import (
    BEYOND,
    WEIGHT,
    Sent,
    Traffic,
    layout_of,
    outer_question,
    present,
    question_hash,
    total_from,
)
from cupola.secure.member import ANSWER, CHECK, terms_hash
from cupola.secure.roster import Roster
from cupola.secure.settlement import CHECK as CHECKS
from cupola.secure.settlement import (
    SUM,
    Request,
    chunks,
    settled_question,
    unmask_question,
)
from cupola.secure.unmasking import ATTEMPTS, Call, Early, Missing, Newcomers, Settled

TOO_FEW = "too few sites for a masked sum"
STAYS_OUT = "it dropped out of earlier totals, and stays out"
ATTEMPT = 10**15  # as long as the numbers that attempts have in this century


class Hidden(Federation):
    """An engine whose sums are hidden by a protocol; gather asks each site openly, as ever."""

    def __init__(self, engine: Federation, roster: Roster) -> None:
        super().__init__(len(engine), quorum=engine.quorum, ledger=engine.ledger)
        if len(roster.sites) != len(engine):
            raise FederationError(
                f"the roster names {len(roster.sites)} sites, the federation has {len(engine)}"
            )
        self.engine, self.roster = engine, roster

    def sum(self, question: Question, sites: Sequence[int]) -> Total:
        """Add the contributions of these sites; nobody sees a single one."""
        question = replace(question, confirmed=self.engine.confirmed_for(question))
        sites = sorted(sites)
        broken: list[int] = []
        refused = self.engine.deviations(question, sites)
        if len(sites) < self.roster.minimum:
            refused = refused or dict.fromkeys(sites, TOO_FEW)
        if refused:
            total = Total(failed=refused)
            self._enter(None, question, total, [])
        else:
            total, broken = self._sum(question, sites)
        self.require_quorum(question, len(total.sites), len(sites), total.failed, broken)
        self.engine.heard(question, total if total.sites else None)
        return total

    @abstractmethod
    def _sum(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        """The total of at least the minimum of sites, booked in the ledger, and who sent broken
        answers."""

    def _enter(
        self, outer: Question | None, inner: Question, total: Total, sizes: list[int]
    ) -> None:
        """Book a hidden sum under the name of what was asked. outer: None if nobody was."""
        self.ledger.add(
            Entry(
                step=inner.step,
                round=inner.round,
                task=inner.task,
                kind="sum",
                sites=total.sites,
                failed=total.failed,
                bytes_down=0 if outer is None else question_size(outer),
                bytes_up=common(sizes),
                reveals=inner.reveals,
                protection=self._protection(inner),
            )
        )

    def _protection(self, inner: Question) -> str:
        return protection(inner.protection, self.roster)

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


@dataclass
class _Collected:
    """What came in of one attempt."""

    sums: dict[encoding.Entry, np.ndarray] = field(default_factory=dict)
    checks: dict[encoding.Entry, int] = field(default_factory=dict)
    survivors: list[int] = field(default_factory=list)
    layouts: list[Layout] = field(default_factory=list)
    envelopes: list[bytes] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    failed: dict[int, str] = field(default_factory=dict)
    broken: list[int] = field(default_factory=list)

    def add(self, site: int, answer: Contribution, own: Layout) -> None:
        for entry in own:
            integers = answer.arrays[ANSWER + entry.name]
            if entry in self.sums:
                self.sums[entry] += integers  # modulo 2^bits, as integers of that width do
            else:
                self.sums[entry] = integers.copy()
            check = from_bytes(answer.arrays[CHECK + entry.name])
            self.checks[entry] = (self.checks.get(entry, 0) + check) % P
        self.survivors.append(site)
        self.layouts.append(own)
        self.envelopes.append(answer.arrays["envelope"].tobytes())
        self.sizes.append(contribution_size(answer.arrays))


class Masked(Hidden):
    """Masked sums over an engine. compensator: the third party, as a federation of one."""

    def __init__(self, engine: Federation, compensator: Federation, roster: Roster) -> None:
        super().__init__(engine, roster)
        self.compensator = compensator
        self._out: dict[str, set[int]] = {}  # task -> sites that stay out of its totals

    def _sum(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        out = set() if self.roster.changes else self._out.setdefault(question.task, set())
        left = ATTEMPTS
        while True:
            asked = [site for site in sites if site not in out]
            try:
                total, broken = self._without_newcomers(question, asked)
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

    def _without_newcomers(
        self, question: Question, sites: Sequence[int]
    ) -> tuple[Total, list[int]]:
        try:
            return self._attempt_in_time(question, sites)
        except Settled:
            # Settled before a crash, for other survivors: it can be told for those only.
            before, _ = self._settled(question.step)
            if not set(before) <= set(sites):
                raise
            total, broken = self._attempt_in_time(question, before)
            others = [site for site in sites if site not in before]
            total.failed |= dict.fromkeys(others, "the step was settled without it")
            return total, broken

    def _attempt_in_time(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        try:
            return self._attempt(question, sites)
        except Early:
            _, latest = self._settled(question.step)
            return self._attempt(question, sites, latest + 1)

    def _attempt(
        self, question: Question, sites: Sequence[int], least: int = 0
    ) -> tuple[Total, list[int]]:
        key = secrets.token_bytes(32)  # of the checksums; the compensator never sees it
        # Later attempts have higher numbers, after a crash, too.
        attempt = max(time.time_ns() // 1000, least)
        layout = layout_of(question, len(self.roster.sites))
        options = {
            "roster": self.roster.digest.hex(),
            "attempt": attempt,
            "check": key.hex(),
        }
        outer = outer_question("masked", question, _expected(layout), options)
        came = self._collect(outer, layout, sites)
        total = Total(failed=came.failed)
        if len(came.survivors) < self.roster.minimum:
            total.failed |= dict.fromkeys(came.survivors, TOO_FEW)
        else:
            request = self._request(question, attempt, terms_hash(layout, key), came)
            total = self._unmask(question, request, came, key)
        self._enter(outer, question, total, came.sizes if total.sites else [])
        return total, came.broken

    def _settled(self, step: int) -> tuple[list[int], int]:
        """For whom a step was settled, and in which attempt."""
        asked = settled_question(step, len(self.roster.sites))
        ((_, answer),) = self.compensator.ask(asked, [0])
        if isinstance(answer, Failure) or refusal(answer, asked) is not None:
            raise FederationError("the compensator does not say for whom a step was settled")
        sites = [int(site) for site in np.flatnonzero(answer.arrays["settled"])]
        return sites, int(answer.arrays["attempt"])

    def _collect(self, outer: Question, layout: Layout, sites: Sequence[int]) -> _Collected:
        came = _Collected(failed=dict(self.engine.admit(outer, sites)))
        able = [site for site in sites if site not in came.failed]
        for site, answer in self.engine.ask(outer, able):
            if isinstance(answer, Failure):
                came.failed[site] = answer.code
                came.broken += [site] if answer.broken else []
                continue
            own = present(layout, answer, ANSWER)
            code = _broken(answer, outer, layout, own)
            if code is not None:
                came.failed[site] = code
                came.broken.append(site)
            else:
                came.add(site, answer, own)
        return came

    def _unmask(self, question: Question, request: Request, came: _Collected, key: bytes) -> Total:
        call = Call(self.compensator, question, request, self.roster)
        granted = call.settle(came.sums)
        residues = call.unmask(granted, came.sums)
        for entry in granted:
            residue = (came.checks[entry] - residues[entry.name]) % P
            if checksum(key, entry.name, came.sums[entry]) != residue:
                raise FederationError(
                    f"masked sum of '{entry.name}' in step {question.step}: the checksum is wrong, "
                    "so the compensator's or a site's numbers were changed on the way; nothing "
                    "was used"
                )
        self.ledger.add(call.entry())
        sums = {entry: came.sums[entry] for entry in granted}
        return total_from(question, sums, came.survivors, came.failed)

    def _request(self, question: Question, attempt: int, terms: bytes, came: _Collected) -> Request:
        layouts = list(dict.fromkeys(came.layouts))
        return Request(
            study=self.roster.study,
            roster=self.roster.digest,
            step=question.step,
            attempt=attempt,
            question=question_hash(question),
            terms=terms,
            sites=tuple(came.survivors),
            outlines=tuple(encoding.outline(own) for own in layouts),
            layouts=tuple(layouts.index(own) for own in came.layouts),
            envelopes=tuple(came.envelopes),
        )

    def close(self) -> None:
        super().close()
        self.compensator.close()


def expected_traffic(
    question: Question, roster: Roster, asked: Sequence[int], sent: Sent
) -> Traffic:
    """What a masked sum sends if these of the sites that are asked answer. Nobody is asked; all of
    it follows from layouts."""
    del asked  # a site that drops out leaves no trace but the question
    layout, blank = layout_of(question, len(roster.sites)), bytes(32)
    options = {"roster": blank.hex(), "attempt": ATTEMPT, "check": blank.hex()}
    outer = outer_question("masked", question, _expected(layout), options)
    down = question_size(outer)
    if len(sent) < roster.minimum:
        return Traffic(down)
    own = [_sent(layout, names) for names in sent.values()]
    kinds = list(dict.fromkeys(own))
    request = Request(
        study=roster.study,
        roster=blank,
        step=question.step,
        attempt=ATTEMPT,
        question=blank,
        terms=blank,
        sites=tuple(sent),
        outlines=tuple(encoding.outline(kind) for kind in kinds),
        layouts=tuple(kinds.index(kind) for kind in own),
        envelopes=(bytes(ENVELOPE),) * len(sent),
    )
    beside = [(request.to_question(), {"granted": np.zeros(len(request.arrays), bool)})]
    having = Counter(entry for kind in own for entry in kind)
    granted = {e.name: (e.bits, e.size) for e, many in having.items() if many >= roster.minimum}
    for parts in chunks(granted):
        told: Arrays = {SUM + a: _numbers(granted[a][0], i, j) for a, i, j in parts}
        told |= {CHECKS + a: np.zeros(16, np.uint8) for a, start, _ in parts if start == 0}
        beside.append((unmask_question(request, parts), told))
    return Traffic(
        down,
        tuple(_answer_size(kind) for kind in own),
        sum(question_size(asked) for asked, _ in beside),
        sum(contribution_size(told) for _, told in beside),
    )


def _sent(layout: Layout, names: frozenset[str]) -> Layout:
    """The entries of an answer that holds these arrays."""
    always = (WEIGHT, BEYOND)
    return tuple(
        e for e in layout if e.name in always or e.name.removeprefix(f"{WEIGHT}/") in names
    )


def _answer_size(own: Layout) -> int:
    answer: Arrays = {ANSWER + e.name: _numbers(e.bits, 0, e.size) for e in own}
    answer |= {CHECK + e.name: np.zeros(16, np.uint8) for e in own}
    return contribution_size({**answer, "envelope": np.zeros(ENVELOPE, np.uint8)})


def _numbers(bits: int, start: int, stop: int) -> np.ndarray:
    """So many integers of this width, in no memory."""
    return np.broadcast_to(np.zeros((), f"int{bits}"), stop - start)


def protection(own: str, roster: Roster) -> str:
    """In a few words, for the ledger."""
    change = "; sites may change: differences can tell of one" if roster.changes else ""
    masked = f"masked sum of at least {roster.minimum} sites{change}"
    return masked if own == "none" else f"{own}; {masked}"


def _expected(layout: Layout) -> dict[str, Spec]:
    """The arrays of a masked answer."""
    data = {ANSWER + entry.name: Spec((entry.size,), "int") for entry in layout}
    checks = {CHECK + entry.name: Spec((16,), "int") for entry in layout}
    return {**data, **checks, "envelope": Spec((ENVELOPE,), "int")}


def _broken(answer: Contribution, outer: Question, layout: Layout, own: Layout) -> str | None:
    """Why a masked answer cannot be used."""
    code = refusal(answer, outer)
    if code is not None:
        return code
    if "envelope" not in answer.arrays or own[:2] != layout[:2]:
        return "missing parts of a masked answer"
    if answer.weight != 1.0:
        return "invalid weight"
    names = {ANSWER + e.name for e in own} | {CHECK + e.name for e in own} | {"envelope"}
    if set(answer.arrays) != names:
        return "missing parts of a masked answer"
    if answer.arrays["envelope"].dtype != np.uint8:
        return "ill-shaped array 'envelope'"
    wrong = [e.name for e in own if answer.arrays[ANSWER + e.name].dtype != e.dtype]
    if wrong:
        return f"ill-shaped array '{wrong[0]}'"
    try:
        for entry in own:
            from_bytes(answer.arrays[CHECK + entry.name])
    except FederationError as error:
        return str(error)
    return None
