"""What comes of the agreement: which variants stay in a study, and in which cohorts each is.

A variant that some cohorts lack can be tested in the others (`least_cohorts`). Then totals are of
different sets of cohorts, and their differences are answers, too: sums of columns over everybody,
less those over whoever has the variant, are the columns of whoever lacks it. All sets together cut
the cohorts into *groups* that are in exactly the same totals. Whatever is done with the totals, the
finest that comes out is a group's own numbers (`secure.differences`). So under masked sums a set is
used only if every group keeps the fewest cohorts that a total may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from cupola.association import agreement
from cupola.association.agreement import (
    KEPT,
    R_ABSENT,
    R_APART,
    R_FEW,
    R_NOT_AUTOSOME,
    R_REPEATED,
    R_STRAND,
    WORD,
)
from cupola.association.design import AUTOSOME, fewest_people, kinds
from cupola.errors import DataError, PlanError
from cupola.federation.program import State
from cupola.secure.differences import parts

if TYPE_CHECKING:
    from cupola.association.study_choices import Study
    from cupola.association.study_program import Association
    from cupola.federation.message import Arrays

NOTHING_COMMON = "do all cohorts use one genome build, and are their chromosomes known?"
MANY_MOVED = 0.05  # share of variants at other positions that speaks for another genome build


def concluded(program: Association, state: State) -> State:
    """Which variants stay; the state of the same step."""
    variants, own, study = program.variants(state), state.values["own"], program.study
    arrays, count = dict(state.arrays), state.values["at"]
    told = agreement.told(_joined(arrays, "found", count), program.sites)
    reason = agreement.reasons(told)
    reason[agreement.repeated(variants)] = R_REPEATED
    values: dict[str, Any] = {}
    if "lacking/0" in arrays:
        lacking = np.rint(_joined(arrays, "lacking", count)).astype(np.int64)
        more, values = _in_fewer(program, reason, told["absent"], lacking)
        arrays |= more
        arrays = {n: a for n, a in arrays.items() if not n.startswith("lacking/")}
    unknown = agreement.strand_unknown(variants) & (reason == KEPT)
    if study.quality.unknown_strand == "drop":
        reason[unknown] = R_STRAND
    by_frequency = np.zeros((len(variants), 2))
    if "strand/0" in arrays:
        by_frequency = np.rint(_joined(arrays, "strand", count))
        reason[unknown & (by_frequency[:, 1] > 0)] = R_STRAND
        arrays = {n: a for n, a in arrays.items() if not n.startswith("strand/")}
    if study.dosages:
        reason[(kinds(variants.chromosome) != AUTOSOME) & (reason == KEPT)] = R_NOT_AUTOSOME
    facts = {name: int((counts > 0).sum()) for name, counts in told.items()}
    facts |= {"unknown_strand": int(unknown.sum()), "renamed": own["renamed"]}
    if study.quality.unknown_strand == "frequency":
        flipped = (by_frequency[:, 0] > 0) & unknown & (reason == KEPT)
        facts["flipped_by_frequency"] = int(flipped.sum())
    if values:
        facts["in_fewer"] = int((arrays["pattern"] > 0).sum())
    warnings = list(state.values["warnings"])
    moved, hint = facts["moved"] / len(variants), NOTHING_COMMON
    if moved > MANY_MOVED:
        hint = (
            f"{moved:.0%} of the variants stand at other positions in some cohort: it seems to "
            "use another genome build"
        )
        warnings.append(hint)
    if not (reason == KEPT).any():
        raise DataError(
            f"no variant is common to all cohorts ({facts['absent']:,} absent somewhere, "
            f"{facts['moved']:,} elsewhere, {facts['incompatible']:,} with other alleles); "
            f"{hint}"
        )
    warnings += [] if program.public else _unlisted(study, own)
    after = program.after("propose")
    if after == "groups" and not values:
        after = program.after("groups")  # every variant is in every cohort
    values |= {"phase": after, "at": 0, "found": facts, "warnings": warnings}
    return State(state.step, {**arrays, "reason": reason}, {**state.values, **values})


def _joined(arrays: Arrays, name: str, count: int) -> np.ndarray:
    return np.concatenate([arrays[f"{name}/{i}"] for i in range(count)])


def _unlisted(study: Study, own: dict[str, int]) -> list[str]:
    """What to say of variants that no cohort named."""
    missing, unknown = own["unlisted"], own["unknown_allele"]
    if not missing:
        return []
    more = f"; of {unknown:,} an allele is unknown" if unknown else ""
    return [
        f"{missing:,} of {own['variants']:,} variants ({missing / own['variants']:.1%}; all "
        "cohorts' files added up) are not tested: no cohort has at least "
        f"{study.rare} copies of the rarer allele (rare), so none may name them{more}. "
        "To test them, name a public list (variants)"
    ]


# Variants that some cohorts lack


def require_plain_test(study: Study) -> None:
    """PlanError where all people of a cohort that lacks a variant would count as the mean."""
    if study.least_cohorts is not None and (study.scored or study.test == "mixed"):
        raise PlanError(
            "least_cohorts goes with chi-square, linear, and logistic without a score test: mixed "
            "models and score tests count whoever has no genotype as the mean, so all people of a "
            "cohort that lacks a variant; leave least_cohorts out"
        )


def _in_fewer(
    program: Association, reason: np.ndarray, absent: np.ndarray, lacking: np.ndarray
) -> tuple[Arrays, dict[str, Any]]:
    """Let variants stay that enough cohorts have. Array 'pattern': a number per variant, 0 for
    those that all have. Values 'groups': of each cohort; 'patterns': of each its groups, 0 or 1.
    Nothing if no variant stays. The commonest sets of cohorts come first."""
    sites, least = program.sites, program.study.least_cohorts or program.sites
    rows = np.flatnonzero((reason == R_ABSENT) & (sites - absent >= least))
    if not len(rows):
        return {}, {}
    found, which, often = np.unique(lacking[rows], axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)
    sets = [_present(row, sites) for row in found.tolist()]
    everybody = frozenset(map(str, range(sites)))
    used, numbers = [everybody], np.zeros(len(sets), np.int32)
    for i in sorted(range(len(sets)), key=lambda i: (-int(often[i]), found[i].tolist())):
        if min(map(len, parts([*used, sets[i]]))) >= program.apart:
            used.append(sets[i])
            numbers[i] = len(used) - 1
    pattern = np.zeros(len(reason), np.int32)
    pattern[rows] = numbers[which]
    reason[rows] = np.where(pattern[rows] > 0, KEPT, R_APART)
    if len(used) == 1:
        return {}, {}
    groups = sorted(parts(used), key=lambda group: min(map(int, group)))
    of_cohort = [next(i for i, g in enumerate(groups) if str(s) in g) for s in range(sites)]
    patterns = [[int(group <= one) for group in groups] for one in used]
    return {"pattern": pattern}, {"groups": of_cohort, "patterns": patterns}


def _present(lacking: list[int], sites: int) -> frozenset[str]:
    return frozenset(str(s) for s in range(sites) if not lacking[s // WORD] >> s % WORD & 1)


def with_people(program: Association, state: State, told: np.ndarray) -> State:
    """The state that knows how many people each group has: (groups, 3) loaded, males, tested.
    Without variants that would be tested in too few; of the same step."""
    study, values = program.study, state.values
    people = np.rint(told).astype(int)
    tested = (np.array(values["patterns"]) * people[:, 2]).sum(axis=1)
    columns = len(study.columns) + 2 + study.sex_on_x
    least = fewest_people(columns, study.people_per_column) if study.regression else 1
    arrays = dict(state.arrays)
    few = (tested < least)[arrays["pattern"]]
    arrays["reason"] = np.where(few & (arrays["reason"] == KEPT), R_FEW, arrays["reason"])
    fewest = int(tested[tested >= least].min())  # all cohorts together have enough
    more = {"group_people": people.tolist(), "fewest": fewest, "phase": program.after("groups")}
    return State(state.step, arrays, {**values, **more, "at": 0})


def everywhere(state: State) -> np.ndarray:
    """Which variants of the list no cohort lacks, of those that stay."""
    pattern = state.arrays.get("pattern")
    return np.ones(len(state.arrays["reason"]), bool) if pattern is None else pattern == 0


def loaded_people(state: State, index: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
    """People, and males among them, of the cohorts that have each variant of an index."""
    people = state.values["people"]
    if "pattern" not in state.arrays:
        whole = np.ones(len(state.arrays["reason"][index]), np.int64)
        return people["loaded"] * whole, people["males"] * whole
    groups = np.array(state.values["group_people"], np.int64)
    patterns = np.array(state.values["patterns"], np.int64)
    loaded, males, _ = (patterns[:, :, None] * groups).sum(axis=1).T
    pattern = state.arrays["pattern"][index]
    return loaded[pattern], males[pattern]


def cohorts_with(state: State) -> np.ndarray | None:
    """In how many cohorts each variant is; None if all are in all."""
    if "pattern" not in state.arrays:
        return None
    sizes = np.bincount(state.values["groups"])
    each = (np.array(state.values["patterns"], np.int64) * sizes).sum(axis=1)
    return np.asarray(each[state.arrays["pattern"]])
