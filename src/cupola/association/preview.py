"""Every kind of question of a study, as large as it gets, before anybody is asked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from cupola.association import variant_list_codec
from cupola.association.design import SEX_X
from cupola.association.files import Variants
from cupola.association.questions import Asker, Chunk
from cupola.association.study_program import STRETCH, Association
from cupola.federation.message import Question

Outlined = tuple[str, Question, int | None]


def outline(
    study: Association, variants: Variants, people: int, listed: bool
) -> Iterator[Outlined]:
    """('sum' or 'gather', a question, how often it is asked; None: that hangs on answers).

    variants: those of one cohort, which stand for the list. people: of all cohorts together, about.
    listed: whether the list is public.
    """
    wanted, sites = study.study, study.sites
    facts = {"binary": True, "shift": [], "width": [], "tested": people}
    asker = Asker(wanted, sites, people, facts)
    yield "sum", asker.people_question(), 1
    if wanted.regression:
        nothing = [0.0] * (len(wanted.columns) + 1)
        for of in ("mean", "distance", "square"):
            yield "sum", asker.moments(of, True, nothing, nothing), 1
    packed = variant_list_codec.pack(variants, STRETCH * wanted.chunk)
    if not listed:
        yield "gather", asker.propose(None), 1
        yield "gather", asker.propose(len(packed)), 1
    stretches = variant_list_codec.blocks(packed)
    if stretches:
        count, first = stretches[0]
        yield "sum", asker.agree(0, first, count), len(stretches)
    if wanted.fingerprints:
        yield "gather", asker.fingerprints(), 1
    long, whole = (_first(len(variants), size) for size in (STRETCH * wanted.chunk, wanted.chunk))
    genotypes = wanted.trend or wanted.quality.hardy_weinberg > 0
    binary = wanted.test != "linear"
    groups = [0, 1, 2] if binary else [2]
    yield "sum", asker.counts(long, binary, groups, genotypes), len(stretches)
    if wanted.regression:
        yield from _test(study, asker, whole, -(-len(variants) // wanted.chunk))


def _test(study: Association, asker: Asker, chunk: Chunk, chunks: int) -> Iterator[Outlined]:
    fixed, k = 1 + len(study.columns(SEX_X)), len(chunk.index)
    if study.study.test == "linear":
        yield "sum", asker.shared(chunk, fixed, None), 1
        yield "sum", asker.linear(chunk, fixed, True), chunks
        return
    everything, beta = np.ones(k, bool), np.zeros((k, fixed + 1), np.float32)
    yield "sum", asker.shared(chunk, fixed, np.zeros(fixed)), None
    yield "sum", asker.first(chunk, np.zeros(fixed), True), chunks
    yield "sum", asker.newton(chunk, everything, beta), None
    if study.study.newton.firth:
        inverse = np.zeros((k, (fixed + 1) ** 2))
        yield "sum", asker.firth(chunk, everything, beta, inverse), None


def _first(variants: int, size: int) -> Chunk:
    stop = min(variants, size)
    return Chunk(0, stop, 0, np.arange(stop))
