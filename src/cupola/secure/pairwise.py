"""Masked sums without a third party: pairwise masks with drop-out recovery, coordinator's side.

After Bonawitz et al. (2017), in the variant against a coordinator that lies, with the sparse graph
of Bell et al. (2020) for many sites. Each pair of neighbours agrees on a mask that one adds and the
other takes off, and each site adds a mask of its own. Both can be restored from shares that other
sites hold: the own masks of those whose answers came, the pairwise masks of those who dropped out,
and never both of one site. The phases are questions to the sites (`pairwise_member`):

1. keys: one-time keys, signed under the pinned roster;
2. shares: of the mask key and of the own mask's seeds, sealed for the holders;
3. masked: the answer under all masks;
4. survivors: a signature under the set of sites whose answers came;
5. unmask: shares, once a quorum has signed the same set.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from cupola.federation import Arrays, Question, Total
from cupola.federation.message import contribution_size, question_size
from cupola.secure import pairwise_member as _tasks  # noqa: F401 - registers what sites run
from cupola.secure.hidden import Sent, Traffic, outer_question
from cupola.secure.masked import ATTEMPT, Hidden
from cupola.secure.member import ANSWER, CHECK
from cupola.secure.pairwise_keys import KEYS, SIGNATURE, Cohort, pack_edges, sealed_size
from cupola.secure.pairwise_questions import Attempt
from cupola.secure.pairwise_run import Run, TooFew
from cupola.secure.roster import Roster
from cupola.secure.shamir import SHARE
from cupola.secure.unmasking import ATTEMPTS, Missing


class Pairwise(Hidden):
    """Masked sums over an engine, among the sites of the roster alone."""

    def _sum(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        for _ in range(ATTEMPTS - 1):
            with suppress(Missing):
                return self._attempt(question, sites)
        return self._attempt(question, sites)

    def _attempt(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        number = time.time_ns() // 1000  # later attempts have higher numbers
        attempt = Attempt(self.roster, question, number, secrets.token_bytes(32))
        refused = self.engine.admit(outer_question("pairwise masked", question, {}, {}), sites)
        run = Run(self.engine, attempt, dict(refused))
        total = Total()
        try:
            run.meet([site for site in sites if site not in refused])
            run.answer()
            run.agree()
            total = run.unmask()
        except TooFew as few:
            silent = [site for site in sites if site not in run.failed]
            run.failed |= dict.fromkeys(silent, str(few))
        finally:
            for entry in run.entries():
                self.ledger.add(entry)
        total.failed = run.failed
        self._enter(run.asked, question, total, [run.sizes[site] for site in total.sites])
        return total, run.broken


def expected_traffic(
    question: Question, roster: Roster, asked: Sequence[int], sent: Sent
) -> Traffic:
    """What a sum sends if these of the sites that are asked answer; the others drop out after they
    have dealt shares."""
    attempt = Attempt(roster, question, ATTEMPT, bytes(32))
    keys = {"keys": _blank(KEYS), "told": _flags(len(roster.sites))}
    beside: list[tuple[Question, Arrays, int]] = [(attempt.keys(), keys, len(asked))]
    if len(asked) < roster.minimum:
        return Traffic(0, (), *_sizes(beside))
    cohort = Cohort(roster, attempt.statement, tuple(asked), (bytes(KEYS),) * len(asked))
    graph, width = cohort.graph, sealed_size(attempt.count)
    dealt, there = graph.picks, len(sent)
    picks = {"picks": np.zeros(dealt, np.int32), "sealed": _blank(dealt, width)}
    beside.append((attempt.shares(cohort), picks, len(asked)))
    enough = there >= max(graph.quorum, roster.minimum)
    if enough:
        present, signatures = _flags(there, attempt.count - 1), (bytes(SIGNATURE),) * there
        quorum = dict.fromkeys(range(graph.quorum), bytes(SIGNATURE))
        beside += [
            (
                attempt.survivors(list(sent), present, signatures),
                {"signature": _blank(SIGNATURE)},
                there,
            ),
            (
                attempt.unmask(quorum, list(range(dealt)), [bytes(width)] * dealt),
                {"shares": _blank(1 + dealt, attempt.count * SHARE), "valid": _flags(1 + dealt)},
                graph.threshold if graph.complete else there,
            ),
        ]
    answer = {ANSWER + e.name: np.broadcast_to(e.dtype.type(0), e.size) for e in attempt.layout}
    answer |= {CHECK + e.name: _blank(16) for e in attempt.layout}
    answer |= {"present": _flags(attempt.count - 1), "signature": _blank(SIGNATURE)}
    return Traffic(
        question_size(attempt.masked(cohort, tuple(asked), pack_edges(cohort, {}))),
        (contribution_size(answer),) * (there if enough else 0),
        *_sizes(beside),
        graph.complete,
    )


def _sizes(asked: Sequence[tuple[Question, Arrays, int]]) -> tuple[int, int]:
    """Bytes of questions and of answers like these, to and from so many sites."""
    down = sum(many * question_size(question) for question, _, many in asked)
    return down, sum(many * contribution_size(answer) for _, answer, many in asked)


def _flags(*shape: int) -> np.ndarray:
    return np.zeros(shape, bool)


def _blank(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)
