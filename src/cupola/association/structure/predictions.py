"""What a cohort predicts of its own people by whole-genome regression; none of it leaves it.

A *block* is some neighbouring markers of one chromosome. A block's prediction of a person is made
with coefficients from the trait of the people of other folds; so are the weights with which blocks
are added up. What it was told a cohort keeps (`SiteContext.keep`); predictions are made of that
when they are needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from cupola.association.design import AUTOSOME, SEX_X, Design
from cupola.federation.message import Arrays, Declined, Question
from cupola.federation.site import SiteContext

if TYPE_CHECKING:
    from cupola.association.site import Site
    from cupola.association.structure.centred import Centred

Made = TypeVar("Made")

#: Predictions are cut to so many standard deviations of the trait, so that sums have a bound for
#: any data. A block's are some hundredths, those of the genome below one.
CLIP = 10.0


def made_once(own: Site, kept: Arrays, what: Hashable, make: Made | None = None) -> Made | None:
    """What was made of exactly these kept arrays, or is now; only the last is held."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(kept):
        if name.startswith("genome"):
            digest.update(name.encode() + b"\0" + np.ascontiguousarray(kept[name]).tobytes())
    key = digest.digest()
    before = own.made.get(what)
    if make is None:
        return before[1] if before is not None and before[0] == key else None
    own.made[what] = (key, make)
    return make


def autosomal(own: Site, question: Question) -> Design:
    """Who is tested on autosomes: those whom predictions are about, with trait and covariates."""
    return own.design(replace(question, options={**question.options, "kind": AUTOSOME}))


def folds_of(own: Site, site: SiteContext, people: int, folds: int) -> np.ndarray:
    """The fold of each person, at random: relatives in one fold would be predicted less well than
    others. Secret and the same for ever at a real site."""
    if site.secret_seed is None:
        return folds_under(own.secret(), people, folds)
    draw = site.generator("genome folds", 0, secret=True)
    return draw.permutation(people) % folds


def folds_under(secret: bytes, people: int, folds: int) -> np.ndarray:
    """The folds of a real site."""
    drawn = hashlib.blake2b(secret, person=b"genome folds", digest_size=16).digest()
    draw = np.random.default_rng(int.from_bytes(drawn, "big"))
    return draw.permutation(people) % folds


def stretches(kept: Arrays) -> int:
    """How many stretches of blocks the cohort was told."""
    return sum(name.startswith("genome-row/") for name in kept)


def markers_of(own: Site, kept: Arrays, stretch: int, people: np.ndarray) -> Centred:
    from cupola.association.structure.centred import Centred  # tests without it need no genotypes

    rows = kept[f"genome-row/{stretch}"].astype(np.int64), kept[f"genome-swapped/{stretch}"]
    return Centred(own.cohort, *rows, kept[f"genome-mean/{stretch}"], people)


def slices(sizes: np.ndarray) -> list[slice]:
    """The markers of each block in a stretch."""
    ends = np.cumsum(sizes).tolist()
    return [slice(stop - size, stop) for stop, size in zip(ends, sizes.tolist())]


def of_blocks(
    own: Site, site: SiteContext, question: Question, stretch: int, kept: Arrays
) -> np.ndarray:
    """(people, blocks): predictions of a stretch's blocks, cut."""
    names = ("row", "swapped", "mean", "size", "beta", "fixed")
    about = {f"genome-{n}/{stretch}": kept[f"genome-{n}/{stretch}"] for n in names}
    before = made_once(own, about, ("blocks", stretch))
    if before is not None:
        return before
    made = autosomal(own, question)
    beta, fixed = kept[f"genome-beta/{stretch}"], kept[f"genome-fixed/{stretch}"]
    fold = folds_of(own, site, len(made.people), beta.shape[1])
    markers = markers_of(own, kept, stretch, made.people)
    parts = slices(kept[f"genome-size/{stretch}"])
    found = np.empty((len(made.people), len(parts)))
    for block, part in enumerate(parts):
        rows = markers.rows(part)
        for k in range(beta.shape[1]):
            here = fold == k
            found[here, block] = (
                rows[:, here].T @ beta[part, k] + made.columns[here] @ fixed[block, :, k]
            )
    whole = made_once(own, about, ("blocks", stretch), np.clip(found, -CLIP, CLIP))
    assert whole is not None
    return whole


def of_all_blocks(own: Site, site: SiteContext, question: Question, kept: Arrays) -> np.ndarray:
    """(people, blocks), standardised over all cohorts."""
    about = {n: a for n, a in kept.items() if not n.startswith(("genome-weight", "genome-chrom"))}
    found = made_once(own, about, "blocks")
    if found is None:
        each = [of_blocks(own, site, question, i, kept) for i in range(stretches(kept))]
        whole = (np.hstack(each) - kept["genome-middle"]) * kept["genome-inverse-width"]
        found = made_once(own, about, "blocks", whole)
        for i in range(stretches(kept)):  # the same numbers need not be held twice
            own.made.pop(("blocks", i), None)
    assert found is not None
    return found


def weighted(standard: np.ndarray, fold: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(people, r): predictions with weights (folds, blocks, r), each person with those of its
    fold; cut."""
    found = np.empty((len(standard), weights.shape[2]))
    for k in range(len(weights)):
        found[fold == k] = standard[fold == k] @ weights[k]
    return np.clip(found, -CLIP, CLIP)


def left_out(own: Site, site: SiteContext, question: Question, kept: Arrays) -> np.ndarray:
    """(people, 1 + chromosomes): the prediction from all markers, then from those of all
    chromosomes but one, in the order of their numbers."""
    found = made_once(own, kept, "left out")
    if found is None:
        standard, chromosome = of_all_blocks(own, site, question, kept), kept["genome-chromosome"]
        weights = kept["genome-weight"]
        fold = folds_of(own, site, len(standard), len(weights))
        told = [chromosome > 0, *(chromosome != c for c in np.unique(chromosome))]
        each = [weighted(standard, fold, (weights * use)[:, :, None]) for use in told]
        found = made_once(own, kept, "left out", np.hstack(each))
        own.made.pop("blocks", None)
    assert found is not None
    return found


def with_prediction(own: Site, site: SiteContext, question: Question, made: Design) -> Design:
    """A test's people with their prediction as one more column, standardised over all cohorts.

    On which chromosomes it rests follows from the one that is tested: 'prediction' holds its number
    (0: none is left out), the mean and the width."""
    chromosome, middle, width = question.options["prediction"]
    own.pin(("prediction", int(chromosome)), [middle, width])
    kept = site.recall(question)
    if "genome-weight" not in kept:
        raise Declined("no-prediction")
    kind = question.options["kind"]
    what = ("design", kind)
    about = {**kept, "genome-here": np.array([chromosome, middle, width], np.float64)}
    found = made_once(own, about, what)
    if found is None:
        numbers = np.unique(kept["genome-chromosome"]).tolist()
        place = 1 + numbers.index(chromosome) if chromosome else 0
        values = left_out(own, site, question, kept)[:, place]
        at = np.searchsorted(autosomal(own, question).people, made.people)
        column = (values[at] - middle) / width
        last = kind == SEX_X and bool(question.options["sex_on_x"])  # sex stays the last
        place = made.columns.shape[1] - last
        columns = np.insert(made.columns, place, column, axis=1)
        found = made_once(own, about, what, replace(made, columns=columns))
    assert found is not None
    return found


def design_of(own: Site, site: SiteContext, question: Question) -> Design:
    """The people and columns of a test; with whole-genome regression also their prediction."""
    made = own.design(question)
    return with_prediction(own, site, question, made) if _predicts(question) else made


def _predicts(question: Question) -> bool:
    return "prediction" in question.options


def model_of(question: Question) -> int | str:
    """What tells apart the models without a genotype: a kind, and which chromosome is left out."""
    kind: int = question.options["kind"]
    return f"{kind} {question.options['prediction'][0]}" if _predicts(question) else kind
