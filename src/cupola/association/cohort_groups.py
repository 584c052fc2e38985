"""What a cohort tells of the group of cohorts that have the same variants (see
`agreed_variants`)."""

from __future__ import annotations

import numpy as np

from cupola.association.site import Site, guarded
from cupola.association.tasks import groups
from cupola.federation.message import Contribution, Declined, Question
from cupola.federation.site import SiteContext, task

GROUPS = "gwas groups"


@task(GROUPS)
@guarded
def cohort_groups(own: Site, site: SiteContext, question: Question) -> Contribution:
    """People, males and those tested, in the row of this cohort's group: once and for all. Groups
    are what totals over different sets of cohorts can tell of, and none may be too small."""
    options, cohort = question.options, own.cohort
    of_cohort = [int(group) for group in options["groups"]]
    own.pin("groups", of_cohort)
    if not own.least_cohorts or min(map(of_cohort.count, of_cohort)) < own.apart:
        raise Declined("groups-too-small")
    binary = bool(options["binary"])
    found = groups(cohort, binary, own.limits.least_cell)
    tested = cohort.tested(binary, bool(options["regression"]))
    people = np.zeros(question.expects["people"].shape, np.int64)
    people[of_cohort[site.index]] = [found.sum(), (found & cohort.male).sum(), tested.sum()]
    return Contribution({"people": people})
