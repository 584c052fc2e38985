"""The hash that cohorts pin: of a study, not of the version that reads it."""

import pytest
from pydantic import ConfigDict

from cupola.association.agreed_plan import FIRST, agreed
from cupola.association.plan import StudyPlan
from cupola.association.study_choices import Quality

STUDY = {
    "test": "linear",
    "trait": {"column": "QT"},
    "cohorts": [{"name": n, "bfile": n} for n in "abc"],
}
OWN = {*StudyPlan.own_affair, "seeds", "grid"}


def test_a_key_that_came_later_counts_where_it_is_set():
    class LaterQuality(Quality):
        model_config = ConfigDict(frozen=True, extra="forbid")
        later: float = 0.0

    class Later(StudyPlan):
        quality: LaterQuality = LaterQuality()
        leaves: int = 0

    plain = agreed(StudyPlan.model_validate(STUDY), OWN)
    assert agreed(Later.model_validate({**STUDY, "leaves": 0}), OWN) == plain
    changed = {"leaves": 2, "quality": {"later": 0.3}}
    told = agreed(Later.model_validate({**STUDY, **changed}), OWN)
    assert told == {**plain, "leaves": 2, "quality": {**plain["quality"], "later": 0.3}}


@pytest.mark.parametrize("place", FIRST)
def test_keys_of_the_first_edition_are_all_there(place):
    facts = agreed(StudyPlan.model_validate(STUDY), OWN)
    here = facts[place] if place else facts
    assert FIRST[place] <= set(here)
