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

import numpy as np

from cupola.federation import Question, Total
from cupola.federation.message import contribution_size, question_size
from cupola.secure import pairwise_member as _tasks  # noqa: F401 - registers what sites run
from cupola.secure.hidden import outer_question
from cupola.secure.masked import Hidden
from cupola.secure.member import ANSWER, CHECK
from cupola.secure.pairwise_keys import KEYS, SIGNATURE, Cohort, pack_edges, sealed_size
from cupola.secure.pairwise_questions import Attempt
from cupola.secure.pairwise_run import Run, TooFew
from cupola.secure.roster import simulated_roster
from cupola.secure.shamir import SHARE


class Pairwise(Hidden):
    """Masked sums over an engine, among the sites of the roster alone."""

    def _sum(self, question: Question, sites: Sequence[int]) -> tuple[Total, list[int]]:
        number = time.time_ns() // 1000  # later attempts have higher numbers
        attempt = Attempt(self.roster, question, number, secrets.token_bytes(32))
        refused = self.engine._admit(outer_question("pairwise masked", question, {}, {}), sites)
        run = Run(self.engine, attempt, dict(refused))
        outer, total = question, Total()
        try:
            run.meet([site for site in sites if site not in refused])
            outer = run.answer()
            run.agree()
            total = run.unmask()
        except TooFew as few:
            silent = [site for site in sites if site not in run.failed]
            run.failed |= dict.fromkeys(silent, str(few))
        finally:
            for entry in run.entries():
                self.ledger.add(entry)
        total.failed = run.failed
        self._enter(outer, question, total, [run.sizes[site] for site in total.sites])
        return total, run.broken


def expected_bytes(
    question: Question, sites: int, roster: int, minimum: int = 3
) -> tuple[int, int, int]:
    """What a sum over `sites` sites of a roster sends if nobody drops out: to each with the
    question, from each with its answer, and for keys, shares and signatures in all."""
    sites = max(2, sites)
    minimum = min(minimum, sites)
    listed, _, _ = simulated_roster(
        0, "study", max(sites, roster), compensator=False, minimum=minimum
    )
    attempt = Attempt(listed, question, 10**15, bytes(32))
    everybody = tuple(range(sites))
    cohort = Cohort(listed, attempt.statement, everybody, (bytes(KEYS),) * sites)
    graph, width = cohort.graph, sealed_size(attempt.count)
    edges = pack_edges(cohort, {})
    signatures = (bytes(SIGNATURE),) * sites
    present = np.zeros((sites, attempt.count - 1), bool)
    quorum = dict.fromkeys(range(graph.quorum), bytes(SIGNATURE))
    holders = range(graph.picks)
    aside = [
        (attempt.keys(), {"keys": _blank(KEYS), "told": np.zeros(len(listed.sites), bool)}, sites),
        (
            attempt.shares(cohort),
            {"picks": np.zeros(graph.picks, np.int32), "sealed": _blank(graph.picks, width)},
            sites,
        ),
        (
            attempt.survivors(everybody, present, signatures),
            {"signature": _blank(SIGNATURE)},
            sites,
        ),
        (
            attempt.unmask(quorum, list(holders), [bytes(width) for _ in holders]),
            {
                "shares": _blank(1 + graph.picks, attempt.count * SHARE),
                "valid": np.zeros(1 + graph.picks, bool),
            },
            graph.threshold if graph.complete else sites,
        ),
    ]
    more = sum(n * (question_size(q) + contribution_size(answer)) for q, answer, n in aside)
    answer = {ANSWER + e.name: np.broadcast_to(e.dtype.type(0), e.size) for e in attempt.layout}
    answer |= {CHECK + e.name: _blank(16) for e in attempt.layout}
    answer |= {"present": present[0], "signature": _blank(SIGNATURE)}
    down = question_size(attempt.masked(cohort, everybody, edges))
    return down, contribution_size(answer), more


def _blank(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.uint8)
