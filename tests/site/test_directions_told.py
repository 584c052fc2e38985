"""Directions of components that several studies ask of one data set."""

import pytest
from test_following import run
from test_old_copies import next_study
from traits import COMPONENTS, association, witnessed

from cupola.analysis.plan_file import load
from cupola.association.own_cohort import told_before
from cupola.association.plan import StudyPlan
from cupola.errors import FederationError
from cupola.site.consent import spent_file


def test_directions_of_all_studies_of_a_data_set_are_counted_together(tmp_path, opened):
    """Two studies with blocks of their own ask for more: 0.18 a person, then 0.12."""
    trial, plan = association(tmp_path / "all", "linear", components=COMPONENTS,
                              limits={"people": 50, "carriers": 3})  # fmt: skip
    opened.append(trial)
    for i in range(3):
        path = trial.site(i) / "cupola-site.toml"
        path.write_text(path.read_text().replace("[limits]", "[limits]\nreleased = 0.3"))
    run(trial, plan)
    trial.close()
    book = spent_file(trial.site(0), "cohort")
    assert told_before(book)["traits 1\ncomponents"] == pytest.approx(9 / 50)
    document = trial.base / "study.toml"
    document.write_text(document.read_text().replace("block = 3", "block = 2"))
    second = next_study(trial, document)
    opened.append(second)
    reach = witnessed(second, *second.open())
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match="too-many-numbers-released"):
        run(second, load(document, of=StudyPlan), reach=reach)
