"""Every kind of question of a study, as large as it gets, before anybody is asked."""

from __future__ import annotations

from collections.abc import Iterator

from cupola.association import variant_list_codec
from cupola.association.files import Variants
from cupola.association.part import Outlined
from cupola.association.questions import Asker, first_chunk
from cupola.association.study_parts import parts_of
from cupola.association.study_program import STRETCH, Association


def outline(
    study: Association, variants: Variants, people: int, listed: bool
) -> Iterator[Outlined]:
    """What a study asks; see `part.Outlined`.

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
    if wanted.least_cohorts is not None:
        yield "sum", asker.groups(list(range(sites))), 1
    if wanted.fingerprints:
        yield "gather", asker.fingerprints(), 1
    long = first_chunk(len(variants), STRETCH * wanted.chunk)
    genotypes = wanted.trend or wanted.quality.hardy_weinberg > 0
    binary = not wanted.quantitative
    groups = [0, 1, 2] if binary else [2]
    yield "sum", asker.counts(long, binary, groups, genotypes), len(stretches)
    for part in parts_of(wanted):
        yield from part.outline(study, asker, variants)
