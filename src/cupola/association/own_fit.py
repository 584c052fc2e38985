"""A cohort's own effects, for heterogeneity between cohorts: what it would hand a meta-analysis.

Nothing of this leaves the cohort but in sums over cohorts: weights w = 1 / SE^2, w b and w b^2.
Where a cohort has no estimate it adds nothing; whether it has one is told first, as a count.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cupola.association import fit, kernels
from cupola.association.chi_square import allelic
from cupola.association.design import Design, calls, fewest_people, haploid, present
from cupola.association.limits import thin
from cupola.association.site import LARGEST, Site, guarded
from cupola.association.structure.predictions import design_of
from cupola.association.tasks import groups, listed_rows, sized
from cupola.association.variant_sums import variant_sums
from cupola.federation.message import Contribution, Question
from cupola.federation.site import SiteContext, task

FITS, SPREAD = "gwas own fits", "gwas own effects"
LEAST_COPIES = 5  # of the rarer allele, among those tested at a cohort that adds an effect
LEAST_NOISE = 0.01  # of a quantitative trait's variance: less would make weights without bound
_ITERATIONS, _LONGEST = 25, 2.0
_TOLERANCE = 1e-9

Effects = tuple[np.ndarray, np.ndarray]  # b and w of each variant, standardised; w = 0: none


@task(FITS)
@guarded
def fits(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Whether this cohort has an estimate of its own, 0 or 1 per variant."""
    told = _effects(own, site, question)[1] > 0
    return sized(site, question, {"cohorts": told.astype(np.int64)})


@task(SPREAD)
@guarded
def spread(own: Site, site: SiteContext, question: Question) -> Contribution:
    """w, w b and w b^2 of each variant."""
    b, w = _effects(own, site, question)
    return sized(site, question, {"effects": np.column_stack([w, w * b, w * b * b])})


def _effects(own: Site, site: SiteContext, question: Question) -> Effects:
    rows, swapped = listed_rows(own, site, question, lacking=True)
    here = np.flatnonzero(rows >= 0)  # of what a cohort lacks it has no effect
    own.count(question, question.task, rows[here], len(own.cohort.variants), 1)
    b, w = np.zeros(len(rows)), np.zeros(len(rows))
    b[here], w[here] = _estimates(own, site, question, rows[here], swapped[here])
    return b, w


def _estimates(
    own: Site, site: SiteContext, question: Question, rows: np.ndarray, swapped: np.ndarray
) -> Effects:
    kind, least = int(question.options["kind"]), max(LEAST_COPIES, own.limits.least_cell)
    if question.options["test"] == "chi-square":
        return _odds(own, rows, swapped, kind, least)
    made = design_of(own, site, question)
    made = replace(made, columns=made.columns[:, _varying(made.columns)])
    columns = made.columns.shape[1] + 1
    if len(made.people) < fewest_people(columns, own.people_per_column):
        return np.zeros(len(rows)), np.zeros(len(rows))
    if question.options["test"] == "linear":
        return _linear(own, made, rows, swapped, kind, least)
    return _logistic(own, made, rows, swapped, kind, least)


def _varying(columns: np.ndarray) -> np.ndarray:
    """Without covariates that are the same for all of this cohort, but for the intercept."""
    fine = columns.std(axis=0) > 1e-9
    fine[0] = True
    return fine


def _kept(b: np.ndarray, error: np.ndarray, fine: np.ndarray) -> Effects:
    with np.errstate(divide="ignore", invalid="ignore"):
        w = 1 / error**2
    fine = fine & np.isfinite(b) & np.isfinite(w) & (np.abs(b) <= LARGEST)
    return np.where(fine, b, 0.0), np.where(fine, w, 0.0)


def _odds(own: Site, rows: np.ndarray, swapped: np.ndarray, kind: int, least: int) -> Effects:
    """The logarithm of the odds ratio of alleles."""
    cohort, single = own.cohort, haploid(own.cohort, kind)
    asked = groups(cohort, True, own.limits.least_cell)[:2] & present(cohort, kind)
    people = np.concatenate([asked & ~single, asked & single])
    packed = calls(cohort, rows, swapped, kind)
    pair, alone = np.split(kernels.genotype_counts(packed, people), 2, axis=1)
    a1 = 2 * pair[..., 0] + pair[..., 1] + alone[..., 0]
    alleles = np.stack([a1, 2 * pair.sum(axis=2) + alone[..., 0] + alone[..., 2]], axis=2)
    found, _ = allelic(alleles)
    with np.errstate(divide="ignore", invalid="ignore"):
        b = np.log(found["OR"])
    total = alleles.sum(axis=1)
    fine = np.minimum(total[:, 0], total[:, 1] - total[:, 0]) >= least
    return _kept(b, found["SE"], fine & (found["OR"] > 0))


def _linear(
    own: Site, made: Design, rows: np.ndarray, swapped: np.ndarray, kind: int, least: int
) -> Effects:
    chosen = variant_sums(own.cohort, rows, swapped, kind)
    c, k = made.columns.shape[1], len(rows)
    whole = np.column_stack([made.columns, made.y])
    found = chosen.sums(made, whole, np.ones((len(whole), 1)), made.products)
    shared = fit.symmetric(made.products.sum(axis=0) - found.off, c + 1)
    products = np.empty((k, c + 1, c + 1))
    products[:, :-1, :-1] = shared[:, :-1, :-1]
    products[:, -1, :-1] = products[:, :-1, -1] = found.cross[:, :c]
    products[:, -1, -1] = found.cross[:, -1]
    with_y = np.concatenate([shared[:, :-1, -1], found.cross[:, c : c + 1]], axis=1)
    people = np.rint(shared[:, 0, 0])
    fine = fit.trouble(products, people, 50.0) == fit.OK
    fine &= _copies(found.cross[:, 0], people) >= least
    b, error = np.full((2, k), np.nan)
    noise = np.zeros(k)
    some = np.flatnonzero(fine)
    facts = (products[some], with_y[some], shared[some, -1, -1], people[some])
    beta, errors = fit.least_squares(*facts)
    b[some], error[some] = beta[:, -1], errors[:, -1]
    left = shared[some, -1, -1] - (beta * with_y[some]).sum(axis=1)
    noise[some] = left / (people[some] - c - 1)
    return _kept(b, error, fine & (noise >= LEAST_NOISE))


def _copies(copies: np.ndarray, people: np.ndarray) -> np.ndarray:
    """Of the rarer allele; single copies of haploid people count as half a person's two."""
    return np.minimum(copies, 2 * people - copies)


def _logistic(
    own: Site, made: Design, rows: np.ndarray, swapped: np.ndarray, kind: int, least: int
) -> Effects:
    k, p = len(rows), made.columns.shape[1] + 1
    b, error = np.full((2, k), np.nan)
    null = _null(made)
    if null is None:
        return _kept(b, error, np.zeros(k, bool))
    beta = np.tile(np.append(null, 0.0), (k, 1))
    active, fine = np.arange(k), np.zeros(k, bool)
    for turn in range(_ITERATIONS):
        chosen = variant_sums(own.cohort, rows[active], swapped[active], kind)
        gradient, information, spread = chosen.logistic_sums(made, beta[active])
        matrix = fit.symmetric(information, p)
        step, gain, errors = fit.newton_step(gradient, matrix)
        lost = ~np.isfinite(step).all(axis=1) | ~(gain >= 0) | fit.runs_away(step, gain)
        if turn == 0:
            lost |= fit.trouble(matrix, spread[:, -1], 50.0) != fit.OK
            one = np.zeros((len(made.people), 0))
            whole = chosen.sums(made, np.ones((len(one), 1)), one, np.ones((len(one), 1)))
            people = len(one) - whole.off[:, 0]
            lost |= _copies(whole.cross[:, 0], people) < least
        lost |= thin(np.column_stack([information[:, 0], spread]), own.limits.effective)
        beta[active] += np.where(lost[:, None], 0.0, fit.at_most(step, _LONGEST))
        error[active] = errors[:, -1]
        with np.errstate(invalid="ignore"):
            done = ~lost & (gain < _TOLERANCE) & ~fit.is_long(step)
        fine[active[done]] = True
        active = active[~done & ~lost & (np.abs(beta[active]) <= LARGEST).all(axis=1)]
        if not len(active):
            break
    return _kept(beta[:, -1], error, fine)


def _null(made: Design) -> np.ndarray | None:
    """The model without a genotype; None without an answer."""
    columns, y = made.columns, made.y
    beta = np.zeros(columns.shape[1])
    for _ in range(_ITERATIONS):
        chance = 1 / (1 + np.exp(-np.clip(columns @ beta, -700, 700)))
        weight = chance * (1 - chance)
        gradient, information = columns.T @ (y - chance), (columns * weight[:, None]).T @ columns
        step, gain = fit.logistic_null(gradient, information)
        if not np.isfinite(step).all() or not gain >= 0:
            return None
        beta = beta + fit.at_most(step[None], _LONGEST)[0]
        if (np.abs(beta) > LARGEST).any():
            return None
        if gain < _TOLERANCE:
            return beta
    return None
