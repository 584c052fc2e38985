"""A sum whose parts stay hidden: the question around the question, and what sites hide.

A site is asked an outer question, which holds the inner one. It runs the inner task, and hands on
integers instead of its answer: each array times its weight, in fixed point, and the weight itself.
How they are hidden is the protocol's business (`compensator_client`, `pairwise`).

A number beyond its bound is cut off, and how many were is one more hidden number. Were a site to
refuse instead, a coordinator could find out its numbers by asking again with other bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np

from cupola.errors import FederationError
from cupola.federation.federation import Total
from cupola.federation.message import (
    WITNESS,
    Arrays,
    Question,
    Spec,
    content_digest,
    question_fields,
    question_from,
    refusal,
)
from cupola.federation.site import SiteContext, find_task
from cupola.secure.encoding import Entry, Layout, OutOfRange, decode, encode, entry

ANSWER, CHECK = "masked/", "check/"  # the two arrays that stand for one
BEYOND = "#beyond"  # how many numbers were cut off at their bounds
WEIGHT = "#weight"  # the sum of weights; '#weight/name' those of the sites that sent this array


def outer_question(
    task: str, question: Question, expects: Mapping[str, Spec], options: Mapping[str, Any]
) -> Question:
    """The question `task` about the inner `question`."""
    return replace(
        question,
        task=task,
        options={"inner": question_fields(question), "hidden": dict(options)},
        expects=expects,
    )


def inner_question(question: Question) -> Question:
    """The question that an outer one is about."""
    fields = question.options.get("inner")
    if not isinstance(fields, Mapping):
        raise FederationError("question is not well formed")
    counters = (question.step, question.round, question.confirmed)
    inner = question_from(fields, question.arrays, *counters)
    if find_task(inner.task).about is not None:
        raise FederationError("question is not well formed")
    return inner


def question_hash(inner: Question) -> bytes:
    """What a site signs that it was asked: with the round only if the answer depends on it."""
    try:
        return content_digest(inner, find_task(inner.task).random(inner))
    except (KeyError, TypeError, ValueError):
        raise FederationError("question is not well formed") from None


def layout_of(inner: Question, sites: int) -> Layout:
    """How the answers of up to `sites` sites are encoded, from the bounds that the question
    states: of all sites of the roster, so that it is the same for every cohort."""
    numbers = 1 + sum(math.prod(spec.shape) for spec in inner.expects.values())
    entries = [
        entry(WEIGHT, (), "float", inner.heaviest, sites),
        entry(BEYOND, (), "int", numbers, sites),
    ]
    for name, spec in sorted(inner.expects.items()):
        if name.startswith("#"):
            raise FederationError(f"an array may not be named '{name}'")
        if spec.bound is None:
            raise FederationError(
                f"'{inner.task}' cannot be asked as a masked sum: nothing bounds its array "
                f"'{name}' (give its Spec a bound)"
            )
        if spec.code is not None:
            raise FederationError(
                f"'{inner.task}' cannot be asked as a masked sum: compact arrays such as '{name}' "
                "are opened one by one"
            )
        bits = spec.bits if spec.kind == "float" else None
        entries.append(entry(name, spec.shape, spec.kind, spec.bound, sites, bits))
        if inner.partial:
            entries.append(entry(f"{WEIGHT}/{name}", (), "float", inner.heaviest, sites))
    if inner.witnessed:
        entries.append(entry(WITNESS, (4,), "int", 2**32 - 1, sites))
    return tuple(entries)


def hidden_values(
    site: SiteContext, inner: Question, layout: Layout, protocol: str
) -> dict[Entry, np.ndarray]:
    """Run the inner task: its answer as integers, range-checked. The coordinator will not be able
    to check it, so the site refuses to hand on what is broken. protocol: the outer task; a site
    that stores its answers gives the same one in every attempt."""
    task = find_task(inner.task)
    answer = site.contribution_once(
        inner, lambda: task(replace(site, hidden=layout), inner), protocol
    )
    broken = refusal(answer, inner)
    if broken is not None:
        raise FederationError(broken)
    weight = min(answer.weight, inner.heaviest)
    beyond = int(weight < answer.weight)
    values = {}
    for place in layout:
        name, _, owner = place.name.partition("/")
        if name == WEIGHT:
            if not owner or owner in answer.arrays:
                values[place] = encode(place, np.array(weight))
        elif place.name in answer.arrays:
            values[place], cut = _within_bound(place, answer.arrays[place.name], weight)
            beyond += cut
    values[layout[1]] = encode(layout[1], np.array(beyond))
    return {place: values[place] for place in layout if place in values}


def _within_bound(place: Entry, array: np.ndarray, weight: float) -> tuple[np.ndarray, int]:
    """The integers of an array, and how many of its numbers were cut off at the bound."""
    try:
        return encode(place, array, weight), 0
    except OutOfRange:
        pass
    if place.kind != "float":
        limit = math.floor(Fraction(place.bound) / Fraction(weight))  # rounded, it could be beyond
        beyond = (array > limit) | (array < -limit)
        within = np.clip(array, -limit, limit).astype(array.dtype)
        return encode(place, within, weight), int(beyond.sum())
    most = place.bound / weight * (1 - 2.0**-50)  # so that no product is rounded beyond the bound
    whole = np.asarray(array, np.float64)
    return encode(place, np.clip(whole, -most, most), weight), int((np.abs(whole) > most).sum())


def total_from(
    inner: Question,
    sums: Mapping[Entry, np.ndarray],
    survivors: list[int],
    failed: Mapping[int, str],
) -> Total:
    """The total that unmasked integers stand for."""
    exact = {place.name: integers for place, integers in sums.items()}
    arrays = {p.name: decode(p, integers) for p, integers in sums.items() if p.name != WITNESS}
    weight = float(arrays.pop(WEIGHT, np.array(0.0)))
    beyond = int(arrays.pop(BEYOND, np.array(0)))
    if beyond:
        raise FederationError(
            f"'{inner.task}' in round {inner.round}: numbers beyond their agreed bounds: {beyond:,}"
            "; at which site, nobody can tell, and nothing was used. Raise sum.change or "
            "sum.samples; training that diverges exceeds any bound: try a lower local.lr"
        )
    names = [name for name in arrays if not name.startswith(WEIGHT)]
    weights = {name: float(arrays.get(f"{WEIGHT}/{name}", weight)) for name in names}
    whole = {name: arrays[name] for name in names}
    return Total(whole, weights, weight, survivors, dict(failed), exact if inner.witnessed else {})


def present(layout: Layout, arrays: Arrays, prefix: str) -> Layout:
    """The entries that an answer holds."""
    return tuple(place for place in layout if prefix + place.name in arrays)
