"""What a cohort answers of the mixed model: sums over its people of vectors that it is told by
their coefficients. Some it refuses by itself: vectors that rest on few people, too few people, and
more sums than the study needs (docs/gwas-structure.md says what they would tell)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from cupola.association.design import AUTOSOME, Design
from cupola.association.limits import WITHHELD, on_grid, small, thin, without
from cupola.association.site import Site, guarded
from cupola.association.structure.centred import Centred
from cupola.association.structure.markers import recalled
from cupola.association.study_choices import Mixed
from cupola.association.tasks import listed_rows, sized
from cupola.association.variant_sums import VariantSums, variant_sums
from cupola.federation.message import Arrays, Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

CROSS, SPREAD, RESIDUAL = "gwas mixed cross", "gwas mixed spread", "gwas mixed residual"
SOLUTION, TEST = "gwas mixed solution", "gwas mixed test"
_U = "mixed_u"  # what a cohort keeps: the solutions for its people


def _ready(own: Site, site: SiteContext, question: Question) -> tuple[Design, Centred]:
    """The tested people and their markers, of which there is one set; Declined where there are too
    few people."""
    made = own.design(replace(question, options={**question.options, "kind": AUTOSOME}))
    few = own.people_per_column > 0 and int(question.options["tested"]) < _agreed(own).vectors
    if len(made.people) < own.limits.people or few:
        raise Declined("too-few-people")
    found = recalled(own, site, question, made.people)
    own.pin(("mixed", "markers"), _digest(found.local, found.swapped, found.mean))
    return made, found


def _agreed(own: Site) -> Mixed:
    """The cohort's own copy of what was agreed."""
    if own.study is None or own.study.test != "mixed":
        raise Declined("question-not-understood")
    return own.study.mixed


def _digest(*arrays: np.ndarray) -> str:
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def _coefficients(question: Question, name: str, rows: int, most: int) -> np.ndarray:
    given = question.arrays[name].astype(np.float64)
    if given.ndim != 2 or len(given) != rows or not np.isfinite(given).all():
        raise Declined("coefficients-refused")
    if given.shape[1] > most:
        raise Declined("too-many-vectors")
    return given


def _vectors(own: Site, question: Question, made: Design, markers: Centred) -> np.ndarray:
    """X a + y s + Z c for the cohort's people, (people, vectors)."""
    most = _agreed(own).systems
    a = _coefficients(question, "markers", len(markers), most)
    c = _coefficients(question, "covariates", made.columns.shape[1], most)
    s = _coefficients(question, "trait", 1, most)
    found = markers.times(a) + made.columns @ c + made.y[:, None] * s
    return _many(own, found)


def _many(own: Site, vectors: np.ndarray) -> np.ndarray:
    """Declined if a vector rests on few people: sums with it would be their genotypes. Of numbers
    as a normal distribution has them a third are effective, a few more or less: half of the limit's
    share is asked for, so that no honest vector falls below it by chance."""
    largest = np.abs(vectors).max(axis=0, initial=0.0)
    if not np.isfinite(largest).all():
        raise Declined("coefficients-refused")
    # Of any size: fourth powers of very small or large numbers would be 0 or infinite.
    weights, people = (vectors / np.where(largest > 0, largest, 1.0)) ** 2, len(vectors) / 2
    facts = [weights.sum(axis=0), (weights**2).sum(axis=0), np.full(weights.shape[1], people)]
    if thin(np.column_stack(facts), own.limits.effective).any():
        raise Declined("weights-on-few-people")
    return vectors


@task(CROSS)
@guarded
def cross(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Products of markers with covariates, trait and random signs; their squares."""
    made, markers = _ready(own, site, question)
    count = question.expects["along"].shape[1]
    if count > _agreed(own).signs:  # X'V V'X is nearly X'X where there are many
        raise Declined("too-many-vectors")
    own.pin(("mixed", "cross"), count)  # the same signs in rows of another length are others
    signs = _signs(own, site, len(made.people), count)
    whole = np.column_stack([made.columns, _many(own, made.y[:, None]), signs])
    about = {"products": markers.transposed(whole), "squares": markers.squares()}
    return Contribution({**on_grid(about, own.limits.grid), "along": made.columns.T @ signs})


def _signs(own: Site, site: SiteContext, people: int, count: int) -> np.ndarray:
    """Random signs that nobody else knows, the same whenever they are asked for."""
    if site.secret_seed is None:
        size = -(-people * count // 8)
        drawn = hashlib.shake_256(own.secret() + b"gwas mixed signs").digest(size)
        bits: np.ndarray = np.unpackbits(np.frombuffer(drawn, np.uint8), count=people * count)
    else:
        bits = site.generator("gwas mixed signs", 0).integers(0, 2, people * count, np.uint8)
    return 2.0 * bits.reshape(people, count) - 1.0


@task(SPREAD)
@guarded
def spread(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Squared lengths of X a."""
    _, markers = _ready(own, site, question)
    own.pin(("mixed", "spread"), _digest(question.arrays["markers"]))
    a = _coefficients(question, "markers", len(markers), _agreed(own).signs)
    found = _many(own, markers.times(a))
    return Contribution({"squares": (found**2).sum(axis=0)})


@task(RESIDUAL)
@guarded
def residual(own: Site, site: SiteContext, question: Question) -> Contribution:
    """X'r and r'r of residuals. Each of a number of sums is about one set of residuals."""
    made, markers = _ready(own, site, question)
    at = int(question.options["sum"])
    if not 0 <= at < _agreed(own).sums:
        raise Declined("asked-too-often")
    found = _vectors(own, question, made, markers)
    squares, bound = (found**2).sum(axis=0), question.expects["squares"].bound
    if bound is None or not (squares <= bound).all():
        raise Declined("coefficients-refused")
    own.pin(("mixed", "residual", at), _digest(*_told(question)))
    about = on_grid({"products": markers.transposed(found)}, own.limits.grid)
    return Contribution({**about, "squares": squares})


def _told(question: Question) -> list[np.ndarray]:
    return [question.arrays[name] for name in sorted(question.arrays)]


@task(SOLUTION)
@guarded
def solution(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Keep the solutions for the cohort's people; products of them with the columns of every kind
    of chromosome."""
    made, markers = _ready(own, site, question)
    own.pin(("mixed", "solution"), _digest(*_told(question)))
    whole = np.zeros((made.everybody, question.arrays["markers"].shape[1]))
    whole[made.people] = _vectors(own, question, made, markers)
    site.keep(question, {**site.recall(question), _U: whole})
    found: Arrays = {}
    for name in question.expects:
        options = {**question.options, "kind": int(name.removeprefix("along "))}
        of_kind = own.design(replace(question, options=options))
        found[name] = of_kind.columns.T @ whole[of_kind.people]
    return Contribution(found)


@task(TEST)
@guarded
def tested(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Per variant: products of its centred genotypes (0 without a call) with the solution that
    leaves its group out and with covariates, their squares, people with a call."""
    options, made, kept = question.options, own.design(question), site.recall(question)
    local, swapped = listed_rows(own, site, question)
    if _U not in kept:
        raise Declined("asked-otherwise-before")
    form = [options["stop"], bool(options["missing"]), _digest(*_told(question))]
    own.pin(("mixed", "test", options["start"], options["kind"]), form)
    frequency, column = question.arrays["frequency"], question.arrays["column"]
    if not (frequency.shape == column.shape == local.shape):
        raise Declined("question-not-understood")
    found = np.empty((len(local), made.columns.shape[1] + 3))
    for one in np.unique(column).tolist():
        part = column == one
        rows = variant_sums(own.cohort, local[part], swapped[part], int(options["kind"]))
        whole = np.column_stack([made.columns, kept[_U][made.people, one]])
        found[part] = centred_sums(rows, made, whole, frequency[part], options["missing"])
    arrays: Arrays = {"cross": found[:, :-3], "score": found[:, -3], "square": found[:, -2]}
    people = found[:, -1].astype(np.int64)
    arrays = {**on_grid(arrays, own.limits.grid), "people": people}
    if WITHHELD in question.expects:
        few = small(len(made.people) - people, own.limits.least_cell)
        arrays = without(site, question, arrays, few)
    return sized(site, question, arrays)


def centred_sums(
    rows: VariantSums, made: Design, values: np.ndarray, frequency: np.ndarray, missing: bool
) -> np.ndarray:
    """Of people with a call: genotypes less their means times values, their squares, how many:
    (variants, values + 2). A genotype's mean is twice the frequency times what a copy counts."""
    scale, one = made.scale[:, None], np.ones((len(made.people), 1))
    called = np.column_stack([values * scale, scale**2])
    off = called if missing else called[:, :0]
    found = rows.sums(made, np.column_stack([values, scale]), one, off)
    sums = np.tile(called.sum(axis=0), (len(rows), 1))
    if missing:
        sums -= found.off
    twice, v = 2 * frequency[:, None], values.shape[1]
    products = found.cross[:, :v] - twice * sums[:, :v]
    squares = found.cross[:, [-1]] - 2 * twice * found.cross[:, [v]] + twice**2 * sums[:, [v]]
    return np.column_stack([products, squares, found.counts[:, -1]])
