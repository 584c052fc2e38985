"""What a cohort answers in step one of whole-genome regression, and what it refuses."""

from __future__ import annotations

import hashlib

import numpy as np

from cupola.association.design import Design
from cupola.association.files import CohortError
from cupola.association.limits import WITHHELD
from cupola.association.site import LARGEST, Site, guarded
from cupola.association.structure import predictions
from cupola.association.structure.markers import rarer_copies
from cupola.association.study_choices import WholeGenome
from cupola.association.tasks import listed_rows
from cupola.federation.message import Arrays, Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

START, BLOCKS, STACKED = "gwas genome start", "gwas genome blocks", "gwas genome stacked"
PREDICTED, ERRORS, LEFT_OUT = "gwas genome predicted", "gwas genome errors", "gwas genome left out"
TASKS = (START, BLOCKS, PREDICTED, STACKED, ERRORS, LEFT_OUT)
MOST = 400  # markers in a block


def triangle(square: np.ndarray) -> np.ndarray:
    """The upper triangle, row by row."""
    return square[np.triu_indices(len(square))]


def _ready(own: Site, question: Question) -> Design:
    """The tested people; in all of step one, blocks and folds are the same: in folds of their own
    people could be asked for one by one."""
    options = question.options
    own.pin("genome", [options["block"], options["folds"], options["maf"]])
    return own.design(question)


def _require_people(own: Site, question: Question, made: Design) -> None:
    """Refuse markers' products over too few people, of all cohorts or of this one."""
    wants, options = own.whole_genome, question.options
    told, mine = int(options["tested"]), len(made.people)
    block, folds = int(options["block"]), int(options["folds"])
    if folds < 2 or not 0 < block <= MOST:
        raise Declined("question-not-understood")
    if told < max(wants.people, wants.people_per_marker * block, folds * wants.own_people):
        raise Declined("too-few-people")
    least = _least(wants, block)
    if mine < least:
        raise CohortError(
            "too-few-people",
            f"cohort '{own.files.name}'",
            f"has {mine:,} people tested; whole-genome regression in blocks of {block} needs "
            f"{least:,.0f}: with fewer, products of markers could tell single genotypes",
        )


def foreseen(own: Site, whole: WholeGenome, people: int, binary: bool | None) -> str:
    """What this cohort would withhold, or why it would refuse. people: of all cohorts, about."""
    cohort = own.cohort
    tested = cohort.tested(cohort.looks_binary if binary is None else binary, True)
    least = _least(whole, whole.size(people))
    if tested.sum() < least:
        return f"would refuse whole-genome regression: {tested.sum():,} of {least:,.0f} people"
    told = (cohort.variants.chromosome >= 1) & (cohort.variants.chromosome <= 22)
    few = rarer_copies(own.cohort, np.flatnonzero(told), np.flatnonzero(tested)) < whole.carriers
    return (
        f"would keep {few.sum():,} of {told.sum():,} markers out of whole-genome regression: fewer "
        f"than {whole.carriers} copies of the rarer allele"
    )


def _least(whole: WholeGenome, block: int) -> float:
    """Fewest people of a cohort."""
    return max(whole.own_people, whole.people_per_marker * block / 5)


def _once(own: Site, what: object, *arrays: np.ndarray, most: float = LARGEST) -> None:
    """Answer a question with these numbers, and none with others."""
    digest = hashlib.blake2b()
    for array in arrays:
        if array.dtype != np.float64 or not (np.abs(array) <= most).all():
            raise Declined("coefficients-refused")
        digest.update(str(array.shape).encode() + array.tobytes())
    own.pin(("genome", what), digest.hexdigest())


def _shaped(array: np.ndarray, *shape: int) -> np.ndarray:
    if array.shape != shape:
        raise Declined("question-not-understood")
    return array


@task(START)
@guarded
def start(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Products of covariates and trait, and which markers are too rare here."""
    made, (local, _) = _ready(own, question), listed_rows(own, site, question)
    _require_people(own, question, made)
    _once(own, "start", question.arrays["variants"].astype(np.float64), most=255)
    if own.step_ones is not None:
        own.step_ones.charge(own.cohort, made.people)
    few = rarer_copies(own.cohort, local, made.people) < own.whole_genome.carriers
    return Contribution({"products": made.products.sum(axis=0), WITHHELD: few.astype(np.int8)})


@task(BLOCKS)
@guarded
def blocks(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Products of the markers of each block, and of markers with covariates and, by fold, with what
    the covariates leave of the trait. The markers are kept."""
    made, (local, swapped) = _ready(own, question), listed_rows(own, site, question)
    _require_people(own, question, made)
    order = question.arrays["order"]
    if (np.sort(order) != np.arange(len(local))).any():
        raise Declined("question-not-understood")
    local, swapped = local[order], swapped[order]
    if (rarer_copies(own.cohort, local, made.people) < own.whole_genome.carriers).any():
        raise Declined("too-few-carriers")
    stretch, folds = int(question.options["stretch"]), int(question.options["folds"])
    size, mean = question.arrays["size"].astype(np.int64), question.arrays["mean"]
    gamma = _shaped(question.arrays["gamma"], made.columns.shape[1])
    if (size < 1).any() or (size > question.options["block"]).any() or size.sum() != len(local):
        raise Declined("question-not-understood")
    _once(own, ("markers", stretch), mean, size.astype(np.float64), most=MOST)
    _once(own, "gamma", gamma)
    if not ((mean > 0) & (mean < 2)).all():
        raise Declined("question-not-understood")
    own.count(question, "genome block", local, len(own.cohort.variants), 1)
    kept = site.recall(question)
    if stretch != predictions.stretches(kept):
        raise Declined("asked-otherwise-before")
    most = own.whole_genome.people_per_prediction
    if most * (_blocks(kept) + len(size)) > question.options["tested"]:
        raise Declined("too-few-people")
    kept = {
        **kept,
        f"genome-row/{stretch}": local.astype(np.int32),
        f"genome-swapped/{stretch}": swapped,
        f"genome-mean/{stretch}": mean,
        f"genome-size/{stretch}": size,
        "genome-gamma": gamma,
    }
    site.keep(question, kept)
    return Contribution(_products(own, site, made, kept, stretch, folds))


def _products(
    own: Site, site: SiteContext, made: Design, kept: Arrays, stretch: int, folds: int
) -> Arrays:
    rest, fold = _rest(made, kept), predictions.folds_of(own, site, len(made.people), folds)
    each = np.where(fold[:, None] == np.arange(folds), rest[:, None], 0.0)  # (people, folds)
    markers = predictions.markers_of(own, kept, stretch, made.people)
    linked, cross, trait = [], [], []
    for part in predictions.slices(kept[f"genome-size/{stretch}"]):
        rows = markers.rows(part)
        linked.append(triangle(rows @ rows.T))
        cross.append(rows @ made.columns)
        trait.append(rows @ each)
    return {
        "linked": np.concatenate(linked),
        "cross": np.vstack(cross),
        "trait": np.vstack(trait),
        "fixed": made.columns.T @ each,
    }


def _rest(made: Design, kept: Arrays) -> np.ndarray:
    """What the covariates leave of the trait."""
    return made.y - made.columns @ kept["genome-gamma"]


def _blocks(kept: Arrays) -> int:
    """How many blocks the cohort was told."""
    return sum(len(kept[f"genome-size/{i}"]) for i in range(predictions.stretches(kept)))


@task(PREDICTED)
@guarded
def predicted(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Moments of the predictions of a stretch's blocks, whose coefficients are kept."""
    made, kept, stretch = _ready(own, question), site.recall(question), question.options["stretch"]
    size = kept[f"genome-size/{stretch}"]
    folds, columns = int(question.options["folds"]), made.columns.shape[1]
    beta = _shaped(question.arrays["beta"], int(size.sum()), folds)
    fixed = _shaped(question.arrays["fixed"], len(size), columns, folds)
    _once(own, ("coefficients", stretch), beta, fixed)
    kept = {**kept, f"genome-beta/{stretch}": beta, f"genome-fixed/{stretch}": fixed}
    site.keep(question, kept)
    found = predictions.of_blocks(own, site, question, stretch, kept)
    return Contribution({"sums": np.stack([found.sum(axis=0), (found**2).sum(axis=0)], axis=1)})


@task(STACKED)
@guarded
def stacked(own: Site, site: SiteContext, question: Question) -> Contribution:
    """By fold, products of the standardised predictions of blocks, and of these with the trait."""
    made, kept = _ready(own, question), site.recall(question)
    middle, inverse_width = question.arrays["middle"], question.arrays["inverse_width"]
    _once(own, "standard", middle, inverse_width, most=np.finfo(np.float64).max)
    kept = {**kept, "genome-middle": middle, "genome-inverse-width": inverse_width}
    site.keep(question, kept)
    rest, folds = _rest(made, kept), int(question.options["folds"])
    standard = predictions.of_all_blocks(own, site, question, kept)
    fold = predictions.folds_of(own, site, len(rest), folds)
    parts = [(standard[fold == k], rest[fold == k]) for k in range(folds)]
    return Contribution(
        {
            "products": np.stack([triangle(w.T @ w) for w, _ in parts]),
            "trait": np.stack([w.T @ y for w, y in parts]),
        }
    )


@task(ERRORS)
@guarded
def errors(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Squared errors of predictions, by penalty, of people whose trait had no part in them."""
    made, kept = _ready(own, question), site.recall(question)
    shape = int(question.options["folds"]), _blocks(kept), len(own.whole_genome.stacked)
    weights = _shaped(question.arrays["weights"], *shape)
    _once(own, "weights", weights)
    standard = predictions.of_all_blocks(own, site, question, kept)
    fold = predictions.folds_of(own, site, len(standard), len(weights))
    found = predictions.weighted(standard, fold, weights)
    return Contribution({"errors": ((_rest(made, kept)[:, None] - found) ** 2).sum(axis=0)})


@task(LEFT_OUT)
@guarded
def left_out(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Moments of the predictions from all markers, and from all but one chromosome's; the weights
    are kept for the tests."""
    _ready(own, question)
    kept, chromosome = site.recall(question), question.arrays["chromosome"].astype(np.int64)
    shape = int(question.options["folds"]), _blocks(kept)
    weights = _shaped(question.arrays["weights"], *shape)
    chromosome = _shaped(chromosome, shape[1])
    _once(own, "chosen weights", weights, chromosome.astype(np.float64))
    kept = {**kept, "genome-weight": weights, "genome-chromosome": chromosome}
    site.keep(question, kept)
    found = predictions.left_out(own, site, question, kept)
    return Contribution({"sums": np.stack([found.sum(axis=0), (found**2).sum(axis=0)], axis=1)})
