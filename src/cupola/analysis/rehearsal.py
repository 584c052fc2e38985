"""A rehearsal: the questions of a program, put to nobody.

The program is taken through all its steps. In the place of an answer stand its names, types and
shapes; who gives none (no samples, a simulated drop-out, a budget that is used up) is found out
from the sizes of data and the seed, as in the run. Bytes go to a ledger and charges to a book, by
the functions that a run uses, so that what a plan is promised to send and spend is what it does.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from cupola.analysis.protocol import Analysis
from cupola.analysis.simulated import simulated_keys
from cupola.engines.in_process import InProcess
from cupola.errors import PlanError
from cupola.federation.federation import Failure, Federation, Total
from cupola.federation.ledger import COMPENSATOR, Entry, Ledger, common
from cupola.federation.message import (
    Arrays,
    Contribution,
    Question,
    blank,
    contribution_size,
    opened,
    question_fields,
)
from cupola.federation.program import Ask, Program, State
from cupola.federation.site import (
    Charge,
    Host,
    SiteContext,
    StateStore,
    charge_of,
    find_task,
    is_known,
)
from cupola.privacy.budget import Book
from cupola.secure.differences import ALL, Sets, behind, exposed
from cupola.secure.secure_aggregation import TOO_FEW
from cupola.secure.simulation import Parties, expected_traffic
from cupola.secure.traffic import Sent, Traffic

_NOTHING = {"questions": 0, "down": 0, "up": 0}
REMEMBERED = 100_000  # sites
LOOKED = 5000  # sites whose held-out data are looked for; others are taken to have some


class Sizes:
    """How much data sites hold, found out once."""

    def __init__(self, host: Any) -> None:
        self.host = host
        self.guessed = False  # whether some were not looked at
        self._held: dict[int, dict[str, int]] = {}

    @cached_property
    def train(self) -> np.ndarray:
        return self.host.sites.sizes()

    def held(self, site: int, split: str) -> int:
        if split == "train":
            return int(self.train[site])
        if site >= LOOKED:
            self.guessed = True
            return 1
        if site not in self._held:
            data = self.host.data(site)
            self._held[site] = {s: len(getattr(data, s)) for s in ("validation", "test")}
        return self._held[site][split]


class _Counted:
    """A site's data, of which only the sizes are known."""

    def __init__(self, sizes: Sizes, site: int) -> None:
        self._sizes, self._site = sizes, site

    def __getattr__(self, split: str) -> range:
        return range(self._sizes.held(self._site, split))


class Rehearsal(Federation):
    """Sites that answer nothing, but whose answers' bytes and charges are booked.

    parties: where sums are masked. book: where sites keep accounts. phase: under which what is
    asked now is counted. guessed: why some figure is not exact.
    """

    def __init__(
        self,
        host: Any,
        workspace: Any,
        *,
        seed: int,
        quorum: float = 0.0,
        parties: Parties | None = None,
        book: Book | None = None,
    ) -> None:
        super().__init__(len(host), quorum=quorum, ledger=Ledger(self._count))
        self.sizes, self.workspace, self.seed = Sizes(host), workspace, seed
        self.parties, self.book = parties, book
        self.phase = ""
        self.rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.first: dict[str, tuple[int, int]] = {}  # task -> bytes to and from a site
        self.charged: Counter[int] = Counter()  # site -> answers that are charged for
        self.sparse = False
        self._behind: list[Sets] = []  # sites behind masked totals
        self._store = StateStore()
        self._traffic: dict[tuple[Any, ...], tuple[int, Traffic]] = {}  # of the last question
        self._known: dict[int, SiteContext] = {}

    def put(self, ask: Ask) -> bool:
        """Book what would happen if this were asked; whether anybody would answer."""
        question = replace(ask.question, confirmed=-1)
        if ask.kind == "gather" or self.parties is None:
            return self._unmasked(question, ask.kind, sorted(ask.sites))
        return self._hidden(question, sorted(ask.sites), self.parties)

    # As Federation.sum and gather do it

    def _unmasked(self, question: Question, kind: str, sites: Sequence[int]) -> bool:
        failed = self._charged(question, sites)
        answers = self._answers(question, [site for site in sites if site not in failed])
        sizes = {s: contribution_size(a) for s, a in answers.items() if not isinstance(a, str)}
        failed |= {site: told for site, told in answers.items() if isinstance(told, str)}
        self.record(question, kind, list(sizes), failed, list(sizes.values()))
        self.require_quorum(question, len(sizes), len(sites), failed, [])
        return bool(sizes)

    # As SecureSums.sum does it

    def _hidden(self, question: Question, sites: Sequence[int], parties: Parties) -> bool:
        failed: dict[int, str] = dict.fromkeys(sites, TOO_FEW)
        told = Traffic()
        if len(sites) >= parties.minimum:
            failed = self._charged(question, sites)
            able = [site for site in sites if site not in failed]
            answers = self._answers(question, able)
            sent = {s: frozenset(a) for s, a in answers.items() if not isinstance(a, str)}
            told = self._sent(question, parties, able, sent)
            self._keep_crowds(question, parties, sent)
            failed |= {s: a if isinstance(a, str) else TOO_FEW for s, a in answers.items()}
            failed = {s: code for s, code in failed.items() if s not in sent or not told.up}
        answered = [site for site in sites if site not in failed]
        self.sparse |= not told.exact
        at, up = (question.step, question.round), common(list(told.up))
        self.ledger.add(Entry(*at, question.task, "sum", answered, failed, told.down, up, ""))
        if told.beside_down:
            down, up = told.beside_down, told.beside_up
            self.ledger.add(Entry(*at, "unmask", "unmask", [COMPENSATOR], {}, down, up, ""))
        self.require_quorum(question, len(answered), len(sites), failed, [])
        return bool(answered)

    def _keep_crowds(self, question: Question, parties: Parties, sent: Sent) -> None:
        """Refuse what a compensator would refuse: the same rule, for those who would answer."""
        if parties.changes or len(sent) < parties.minimum:
            return
        senders = {ALL: [str(site) for site in sent]}
        for site, arrays in sent.items():
            for array in arrays:
                senders.setdefault(array, []).append(str(site))
        new = behind(senders, parties.minimum)
        found = exposed(self._behind, new, parties.minimum)
        if found:
            raise PlanError(
                f"'{question.task}' in round {question.round}: not the same sites answer as in "
                f"earlier totals (site {min(map(int, found))}, say, has no such data), and their "
                "difference would tell of too few sites: no total would be told. Let all sites "
                "answer, or agree to it (sum.changes = true)"
            )
        if new not in self._behind:
            self._behind.append(new)

    def _sent(
        self, question: Question, parties: Parties, asked: Sequence[int], sent: Sent
    ) -> Traffic:
        """Sizes follow from what is sent and by whom, and how long the step and the options are;
        these go to each site once."""
        words = question_fields(question)
        length = len(json.dumps(words.pop("options"), separators=(",", ":")))
        sizes = tuple((name, array.nbytes) for name, array in question.arrays.items())
        step = len(str(question.step))
        who = (json.dumps(words), sizes, step, len(asked), tuple(sent.values()))
        if who not in self._traffic:
            self._traffic = {who: (length, expected_traffic(question, parties, asked, sent))}
        before, told = self._traffic[who]
        return replace(told, down=told.down + length - before) if told.down else told

    # Sites

    def _contexts(self, sites: Sequence[int]) -> list[SiteContext]:
        if len(self._known) > REMEMBERED:
            self._known = {}
        for site in sites:
            if site not in self._known:
                party = None if self.parties is None else self.parties.member(site)
                data = _Counted(self.sizes, site)
                self._known[site] = SiteContext(
                    site, data, self.workspace, self._store, self.seed, party=party
                )
        return [self._known[site] for site in sites]

    def _charged(self, question: Question, sites: Sequence[int]) -> dict[int, str]:
        """Sites that refuse because of what it would cost them."""
        if self.book is None or not sites:
            return {}
        task, bare = find_task(question.task), replace(question, arrays={})  # options decide
        charges: dict[int, Charge | None] = {}
        refused: dict[int, str] = {}
        known: dict[int, Charge | str | None] = {}
        for site in self._contexts(sites):
            # Equal sizes, equal charges, unless they hang on when a site was asked before.
            alike = site.index if "pattern" in bare.options else len(site.data.train)
            if alike not in known:
                known[alike] = charge_of(task, site, bare)
            charge = known[alike]
            if isinstance(charge, str):
                refused[site.index] = charge
            else:
                charges[site.index] = charge
        refused |= self.book.charge(bare, charges)
        self.charged.update(s for s, c in charges.items() if c is not None and s not in refused)
        return refused

    def _answers(self, question: Question, sites: Sequence[int]) -> dict[int, Arrays | str]:
        """What sites would answer, or why they would not."""
        task = find_task(question.task) if is_known(question.task) else None
        if sites and task is not None and task.rehearsed is not None:
            return dict(zip(sites, task.rehearsed(self._contexts(sites), question)))
        arrays = {n: blank(s, question.arrays.get(n)) for n, s in question.expects.items()}
        return dict.fromkeys(sites, arrays)

    # Counting

    def row(self, task: str, kind: str) -> dict[str, Any]:
        """What is counted of a task in this phase."""
        facts = {"phase": self.phase, "task": task, "kind": kind}
        return self.rows.setdefault((self.phase, task, kind), facts | _NOTHING)

    def _count(self, entry: dict[str, Any]) -> None:
        booked = Entry(**entry)
        asked, up = len(booked.sites) + len(booked.failed), booked.up()
        row = self.row(booked.task, booked.kind)
        row["questions"] += 1
        row["down"] += booked.bytes_down * asked
        row["up"] += sum(up)
        if up:
            self.first.setdefault(booked.task, (booked.bytes_down, max(up)))

    def ask(
        self, question: Question, sites: Sequence[int]
    ) -> Iterator[tuple[int, Contribution | Failure]]:
        raise NotImplementedError("a rehearsal asks nobody")


class AnsweredRehearsal(Rehearsal):
    """Simulated sites that answer for real what a program's next question depends on; nothing of it
    leaves this process. answered: which tasks; by default all."""

    def __init__(
        self,
        analysis: Analysis[Any],
        host: Host,
        answered: Callable[[str], bool] = lambda _: True,
    ) -> None:
        plan = analysis.plan
        parties = simulated_keys(analysis, len(host)) if plan.sum.masked else None
        facts: dict[str, Any] = {"seed": plan.seed, "quorum": plan.engine.quorum}
        super().__init__(host, host.workspace(), parties=parties, **facts)
        self.host, self.answered, self.phase = host, answered, analysis.kind
        self.engine = InProcess(host, seed=plan.seed, workers=plan.engine.workers)
        self._told: dict[int, Contribution] = {}
        self.told_lines: dict[str, None] = {}  # what answers reveal, in the order of questions

    def put(self, ask: Ask) -> bool:
        how = "summed" if ask.kind == "sum" else "each site's own"
        self.told_lines[f"{ask.question.task}: {ask.question.reveals} ({how})"] = None
        return super().put(ask)

    def reply(self, ask: Ask) -> Total | dict[int, Contribution] | None:
        """To the question that was put last; None if nobody answered it."""
        if not self.answered(ask.question.task):
            return None
        if ask.kind == "gather":
            return self._told
        total = Total()
        for site, answer in self._told.items():
            total.add(site, opened(answer, ask.question))
        return total

    def _answers(self, question: Question, sites: Sequence[int]) -> dict[int, Arrays | str]:
        if self.computed(question.task):
            found = dict(self.engine.ask(question, sites))
        else:
            found = dict.fromkeys(sites, Contribution(self.blank(question)))
        self._told = {s: a for s, a in found.items() if isinstance(a, Contribution)}
        return {s: a.code if isinstance(a, Failure) else a.arrays for s, a in found.items()}

    def computed(self, task: str) -> bool:
        """Whether answers are computed; else they are blank."""
        return self.answered(task)

    def blank(self, question: Question) -> Arrays:
        """What an answer that is not given would look like."""
        return {n: blank(s, question.arrays.get(n)) for n, s in question.expects.items()}


def rehearse_answered(
    program: Program, reach: AnsweredRehearsal, skip: Callable[[State], State] | None = None
) -> State:
    """Take a program through all its steps, with answers; skip: the state after a question that
    nobody answered."""
    state = program.start()
    while (ask := program.ask(state)) is not None:
        if ask.kind == "alone":
            state = program.answer(state, None)
            continue
        reach.put(ask)
        reply = reach.reply(ask)
        if reply is None:
            assert skip is not None
            state = skip(state)
        else:
            state = program.answer(state, reply)
    return state


def rehearse(
    program: Program,
    reach: Rehearsal,
    skip: Callable[[State, bool], State],
    phase: Callable[[State], str],
) -> State:
    """Take a program through all its steps; its last state. skip: the state after a step, which
    somebody answered or not; phase: what a step belongs to."""
    state = program.start()
    while (ask := program.ask(state)) is not None:
        reach.phase = phase(state)
        state = skip(state, ask.kind == "alone" or reach.put(ask))
    return state


def asked(program: Program, skip: Callable[[State, bool], State]) -> Iterator[Ask]:
    """All questions of a program."""
    state = program.start()
    while (ask := program.ask(state)) is not None:
        if ask.kind != "alone":
            yield ask
        state = skip(state, True)
