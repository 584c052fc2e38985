"""Bytes of a masked sum, foretold: all of them follow from layouts, so nobody is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cupola.federation.message import Question, blank, contribution_size, question_size
from cupola.secure.compensator_client import masked_question
from cupola.secure.compensator_messages import SUM, Request, chunks, unmask_question
from cupola.secure.encoding import Layout, outline
from cupola.secure.envelope import ENVELOPE
from cupola.secure.pairwise_keys import KEYS, SIGNATURE, Cohort, sealed_size
from cupola.secure.pairwise_messages import Attempt
from cupola.secure.roster import Roster
from cupola.secure.wrapped_question import ANSWER, BEYOND, WEIGHT, layout_of

Sent = Mapping[int, frozenset[str]]  # site -> the arrays of its answer
_ATTEMPT = 10**15  # as long as the numbers that attempts have in this century
_HASH = bytes(32)


@dataclass(frozen=True)
class Traffic:
    """Bytes of one hidden sum: to each site that was asked, from each that answered, and for keys,
    masks and signatures beside, down and up in all. exact: else they hang on what sites draw."""

    down: int = 0
    up: tuple[int, ...] = ()
    beside_down: int = 0
    beside_up: int = 0
    exact: bool = True


def expected_traffic(
    question: Question, roster: Roster, asked: Sequence[int], sent: Sent
) -> Traffic:
    """What a masked sum sends if these of the sites that are asked answer."""
    if roster.compensator is None:
        return _pairwise(question, roster, asked, sent)
    return _compensated(question, roster, sent)


def _compensated(question: Question, roster: Roster, sent: Sent) -> Traffic:
    """A site that drops out leaves no trace but the question."""
    layout = layout_of(question, len(roster.sites))
    down = question_size(masked_question(question, layout, _HASH, _ATTEMPT, _HASH))
    if len(sent) < roster.minimum:
        return Traffic(down)
    own = [_sent(layout, names) for names in sent.values()]
    kinds = list(dict.fromkeys(own))
    sizes = [_answer(masked_question(question, kind, _HASH, 0, _HASH), kind) for kind in kinds]
    request = Request(
        study=roster.study,
        roster=_HASH,
        step=question.step,
        attempt=_ATTEMPT,
        question=_HASH,
        terms=_HASH,
        sites=tuple(sent),
        outlines=tuple(outline(kind) for kind in kinds),
        layouts=tuple(kinds.index(kind) for kind in own),
        envelopes=(bytes(ENVELOPE),) * len(sent),
    )
    having = Counter(entry for kind in own for entry in kind)
    granted = {e.name: (e.bits, e.size) for e, many in having.items() if many >= roster.minimum}
    beside = [(request.to_question(), 1)]
    beside += [(unmask_question(request, parts), 1) for parts in chunks(granted)]
    up = tuple(sizes[number] for number in request.layouts)
    return Traffic(down, up, *_sizes(beside, layout))


def _pairwise(question: Question, roster: Roster, asked: Sequence[int], sent: Sent) -> Traffic:
    """Those who do not answer drop out after they have dealt shares."""
    attempt, there = Attempt(roster, question, _ATTEMPT, _HASH), len(sent)
    beside = [(attempt.keys(), len(asked))]
    if len(asked) < roster.minimum:
        return Traffic(0, (), *_sizes(beside, attempt.layout))
    cohort = Cohort(roster, attempt.statement, tuple(asked), (bytes(KEYS),) * len(asked))
    graph = cohort.graph
    beside.append((attempt.shares(cohort), len(asked)))
    enough = there >= max(graph.quorum, roster.minimum)
    if enough:
        present = np.zeros((there, attempt.count - 1), bool)
        quorum = dict.fromkeys(range(graph.quorum), bytes(SIGNATURE))
        sealed = [bytes(sealed_size(attempt.count))] * graph.picks
        survivors = attempt.survivors(list(sent), present, (bytes(SIGNATURE),) * there)
        unmask = attempt.unmask(quorum, list(range(graph.picks)), sealed)
        holders = graph.threshold if graph.complete else there
        beside += [(survivors, there), (unmask, holders)]
    masked = attempt.masked(cohort, tuple(asked), cohort.edges({}))
    up = (_answer(masked, attempt.layout),) * (there if enough else 0)
    return Traffic(question_size(masked), up, *_sizes(beside, attempt.layout), graph.complete)


def _sent(layout: Layout, names: frozenset[str]) -> Layout:
    """The entries of an answer that holds these arrays."""
    always = (WEIGHT, BEYOND)
    return tuple(
        e for e in layout if e.name in always or e.name.removeprefix(f"{WEIGHT}/") in names
    )


def _sizes(asked: Sequence[tuple[Question, int]], layout: Layout) -> tuple[int, int]:
    """Bytes of questions to so many parties each, and of their answers."""
    down = sum(many * question_size(question) for question, many in asked)
    return down, sum(many * _answer(question, layout) for question, many in asked)


def _answer(question: Question, layout: Layout) -> int:
    """Bytes of an answer that holds all that the question expects: integers as the layout has them,
    flags, numbers of sites, and else bytes."""
    like = {prefix + e.name: np.zeros((), e.dtype) for e in layout for prefix in (ANSWER, SUM)}
    like["picks"] = np.zeros((), np.int32)
    types = {"bool": np.zeros((), bool), "int": np.zeros((), np.uint8)}
    return contribution_size(
        {n: blank(spec, like.get(n, types[spec.kind])) for n, spec in question.expects.items()}
    )
