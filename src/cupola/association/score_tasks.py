"""What a cohort answers for score tests and saddle-point approximations (see `score_test`)."""

from __future__ import annotations

import numpy as np

from cupola.association.limits import on_grid, small, thin, without
from cupola.association.site import LARGEST, MOST_TILT, Site, guarded
from cupola.association.structure.predictions import design_of, model_of
from cupola.association.tasks import (
    bounded,
    chosen_variants,
    listed_rows,
    no_columns,
    sized,
    weights_and_residuals,
)
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

SCORE, SADDLE = "gwas score", "gwas saddle"


@task(SCORE)
@guarded
def score(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Per variant: genotype times weighted columns and residuals, squares, and what stands for
    those without a call, at the model without a genotype."""
    chosen, made = chosen_variants(own, site, question), design_of(own, site, question)
    beta = bounded(question, (made.columns.shape[1],))
    own.pin(("null", model_of(question)), beta.tolist())  # there is one such model
    weight, residual = weights_and_residuals(made.columns, made.y, beta)
    once = np.column_stack([made.columns * weight[:, None], residual])
    spread = np.column_stack([weight, weight**2, np.ones(len(weight))])
    off = np.column_stack([once, spread]) if question.options["missing"] else no_columns(made)
    if own.wanted.dosages:  # their sum is no whole number
        once = np.column_stack([once, np.ones(len(weight))])
    found = chosen.sums(made, once, weight[:, None], off)
    exact = [-1] if own.wanted.dosages else [0, -1]
    arrays = {"cross": found.cross, "counts": found.counts[:, exact]}
    lost = np.zeros((len(chosen), 3))
    if question.options["missing"]:
        arrays["off"], lost = found.off[:, :-3], found.off[:, -3:]
    few = thin(spread.sum(axis=0) - lost, own.limits.effective)
    few |= small(np.rint(lost[:, 2]), own.limits.least_cell)
    arrays = on_grid(arrays, own.limits.grid)
    return sized(site, question, without(site, question, arrays, few))


@task(SADDLE)
@guarded
def saddle(own: Site, site: SiteContext, question: Question) -> Contribution:
    """Per variant: its score's cumulant generating function, slope and curvature at two points."""
    chosen, made = chosen_variants(own, site, question), design_of(own, site, question)
    beta = bounded(question, (made.columns.shape[1],))
    own.pin(("null", model_of(question)), beta.tolist())
    tilt = question.arrays["tilt"].astype(np.float64)
    at = question.arrays["at"].astype(np.float64)
    if tilt.shape != (len(chosen), len(beta) + 1) or at.shape != (len(chosen), 2):
        raise Declined("coefficients-refused")
    steep = np.abs(tilt[:, :-1]).sum(axis=1) > MOST_TILT * (1 + 1e-6)  # in 32 bits
    # Written so that a number that is none is refused.
    if steep.any() or not ((tilt[:, -1] >= 0) & (tilt[:, -1] <= 2)).all():
        raise Declined("coefficients-refused")
    if not (np.abs(at) <= LARGEST).all():
        raise Declined("coefficients-refused")
    local = listed_rows(own, site, question)[0]
    own.count(question, question.task, local, len(own.cohort.variants))
    chance = made.y - weights_and_residuals(made.columns, made.y, beta)[1]
    sums, spread = chosen.saddle_sums(made, chance, tilt, at)
    few = thin(spread[:, 0], own.limits.effective) | thin(spread[:, 1], own.limits.effective)
    arrays = {name: sums[:, i] for i, name in enumerate(("value", "slope", "curve"))}
    arrays = on_grid(arrays, own.limits.grid)
    return sized(site, question, without(site, question, arrays, few))
