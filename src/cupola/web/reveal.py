"""What a study asks of a site, in words, before the site consents."""

from __future__ import annotations

from typing import Any

from cupola.web.models import Study
from cupola.web.plans import ASSOCIATION, Wrong, check, parse

Row = tuple[str, str, str]  # question, what the coordinator learns, protection


def revealed(study: Study) -> list[Row]:
    """Every question of a study."""
    try:
        plan: Any = check(study.kind, parse(study.plan))
    except Wrong:
        return []
    how = "masked: only the total is seen" if plan.sum.masked else "none: the machine that adds up"
    how += "" if plan.sum.masked else " sees each answer"
    if study.kind == ASSOCIATION:
        return _association(plan, how)
    rows = [("train", "the site's update of the model and the number of samples it used", how)]
    if plan.privacy.on:
        noise = f"{plan.privacy.mechanism}, delta {plan.privacy.delta:g}"
        rows = [("train", rows[0][1], f"{how}; noise: {noise}")]
    if plan.evaluation.on != "public":
        rows.append(("evaluate", "sums of losses and hits on held-out samples", how))
    if plan.evaluation.per_site:
        rows.append(("evaluate", "the site's own loss and metrics", "none, by the plan's wish"))
    if plan.personalise is not None:
        release = plan.personalise.release
        said = "none" if release is None else "noise at the site"
        rows.append(("sparsity", "how often chosen channels are silent on the site's data", said))
    return rows


def compensated() -> list[Row]:
    """What a compensator is asked."""
    told = "masks added up, which are random numbers without the answers they hide"
    return [("settle", told, "sealed to this party; it sees no answer"),
            ("unmask", "the total of masks of those who answered", "none needed")]  # fmt: skip


def _association(plan: Any, how: str) -> list[Row]:
    rows = [
        ("people", "numbers of people: cases, controls, without trait, males among them", how),
        ("agree", "for each variant: absent, other alleles, other place, flipped, swapped", how),
        ("counts", "for each variant, alleles in cases, controls and others", how),
    ]
    if plan.regression:
        rows.insert(1, ("standardise", "mean and spread of covariates and quantitative trait", how))
    if plan.variants is None:
        rows.insert(1, ("propose", "first site only: names and places of its common variants",
                        "none"))  # fmt: skip
    if plan.test == "linear":
        rows.append(("test", "for each variant, sums of products with covariates and trait", how))
    if plan.test == "logistic":
        rows.append(("test", "for each variant and iteration, gradient and information", how))
    return rows
