"""Cutting one data set into cohorts, for experiments: by a list, a column, or shares of cases.

Cohorts are lists of people (FID IID) over the same files, which is what a study's `keep` reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cupola.association.cohort import Files, Wanted, open_cohort
from cupola.association.files import MISSING, read_table
from cupola.base.randomness import generator
from cupola.errors import PlanError


def by_column(people: Sequence[str], path: Path, column: str) -> dict[str, list[str]]:
    """Cohorts as a column of a table with FID and IID names them."""
    table = read_table(path, "split")
    if column not in table.values:
        raise PlanError(f"{path} has no column '{column}'; it has {', '.join(table.names)}")
    named = dict(zip(table.lines, table.values[column]))
    cohorts: dict[str, list[str]] = {}
    for person in people:
        value = named.get(person, "-9")
        if value.lower() not in MISSING:
            cohorts.setdefault(value, []).append(person)
    return dict(sorted(cohorts.items()))


def by_covariate(files: Files, column: str, parts: int) -> dict[str, list[str]]:
    """Cohorts of equal size from the lowest to the highest values of a covariate: as heterogeneous
    as it can be."""
    wanted = Wanted(column, (column,), ambiguous_sex=True, dosages=True)  # whatever the trait is
    cohort = open_cohort(replace(files, pheno=files.cov), wanted)
    value = cohort.covariates[:, 0]
    told = np.flatnonzero(~np.isnan(value) & cohort.loaded)
    order = told[np.argsort(value[told], kind="stable")]
    return {
        str(i): [cohort.person[j] for j in np.sort(part)]
        for i, part in enumerate(np.array_split(order, parts))
    }


def by_sizes(people: Sequence[str], sizes: Sequence[float], seed: int = 1) -> dict[str, list[str]]:
    """Everybody, drawn at random into cohorts of these relative sizes."""
    weight = np.array(sizes, float)
    if len(weight) < 2 or not (weight > 0).all():
        raise PlanError("give at least two cohorts, each with a size above 0")
    order = generator(seed, "gwas split").permutation(len(people))
    ends = np.rint(np.cumsum(weight) / weight.sum() * len(people)).astype(int)
    return {
        str(i): [people[j] for j in np.sort(part)]
        for i, part in enumerate(np.split(order, ends[:-1]))
    }


def by_cases(
    files: Files,
    trait: str | None,
    shares: Sequence[float],
    sizes: Sequence[float] | None = None,
    seed: int = 1,
) -> dict[str, list[str]]:
    """Cohorts with given shares of cases, as many people as there are for them.

    sizes: relative sizes of cohorts, equal without it. People are drawn at random; some stay out
    where cases or controls do not suffice.
    """
    if not all(0 <= share <= 1 for share in shares):
        raise PlanError("shares of cases are between 0 and 1")
    weight = np.array(sizes if sizes is not None else [1.0] * len(shares), float)
    if len(weight) != len(shares) or not (weight > 0).all():
        raise PlanError("give every cohort a share of cases and a size above 0")
    cohort = open_cohort(files, Wanted(trait=trait, dosages=True))
    y = cohort.traits(True)
    draw = generator(seed, "gwas split")
    cases, controls = (draw.permutation(np.flatnonzero(y == v)) for v in (1, 0))
    weight = weight / weight.sum()
    need = np.array([(weight * shares).sum(), (weight * (1 - np.array(shares))).sum()])
    have = np.array([len(cases), len(controls)])
    with np.errstate(divide="ignore"):
        people = float(np.min(np.where(need > 0, have / need, np.inf)))
    found: dict[str, list[str]] = {}
    at = [0, 0]
    for i, (part, share) in enumerate(zip(weight, shares)):
        size = int(people * part + 1e-9)
        take = (round(size * share), size - round(size * share))
        chosen = [group[a : a + n] for group, a, n in zip((cases, controls), at, take)]
        at = [a + n for a, n in zip(at, take)]
        found[str(i)] = [cohort.person[j] for j in np.sort(np.concatenate(chosen))]
    return found


def write_keeps(cohorts: dict[str, list[str]], folder: Path, name: str) -> list[Path]:
    """NAME.COHORT.keep for each cohort."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for cohort, people in cohorts.items():
        if not people:
            raise PlanError(f"cohort '{cohort}' would have nobody")
        path = folder / f"{name}.{cohort}.keep"
        path.write_text("".join(person + "\n" for person in people), encoding="utf-8")
        paths.append(path)
    return paths
