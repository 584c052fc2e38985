"""A site's own limits on what totals of association studies tell of single people."""

import pytest
from test_following import SUMS, run
from traits import association, witnessed

from cupola.association import fit, results
from cupola.association.limits import Released
from cupola.association.own_cohort import released_file, told_before
from cupola.errors import FederationError, PlanError
from cupola.secure.durable_dict import Memory
from cupola.site import join_site
from cupola.site.consent import spent_file
from cupola.site.consent_preview import preview
from cupola.site.ledger import spent

LIMITS = "[limits]\n{} = {}\n"


def say(trial, key, value, site=0):
    path = trial.site(site) / "cupola-site.toml"
    path.write_text(path.read_text() + LIMITS.format(key, value))


@pytest.mark.parametrize("sums", SUMS)
def test_a_study_whose_variants_are_withheld_goes_on(tmp_path, opened, sums):
    trial, plan = association(tmp_path / "all", "logistic", sums, limits={"effective": 0.99})
    opened.append(trial)
    program, _, state = run(trial, plan)
    status = results(program, state).status
    assert 0 < (status == fit.WITHHELD).sum() < len(status)


@pytest.mark.parametrize(("key", "value"), [("effective", 0.5), ("least_cell", 5)])
def test_a_study_with_weaker_limits_is_not_joined_or_gone_on_with(tmp_path, opened, key, value):
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    say(trial, key, value)
    with pytest.raises(PlanError, match=f"limits.{key}"):
        join_site(trial.site(0), trial.base / "study.toml", trial.base / "roster.json")
    with pytest.raises(FederationError, match=f"limits.{key}"):
        run(trial, plan)


def test_numbers_beyond_the_sites_limit_are_not_told_also_after_a_restart(tmp_path, opened):
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    path = released_file(spent_file(trial.site(0), "cohort"))
    other = Released(Memory(path), "another study", 40, 0.5)
    other.charge(150)
    other.close()
    for _ in range(2):  # 60 numbers of 150 people are too many now
        reach = witnessed(trial, *trial.open())
        reach.engine.quorum = 1.0
        with pytest.raises(FederationError, match="too-many-numbers-released"):
            run(trial, plan, reach=reach)
        trial.close()
    assert list(told_before(spent_file(trial.site(0), "cohort"))) == ["another study"]
    assert list(told_before(spent_file(trial.site(1), "cohort"))) in ([], ["traits 1"])


def test_a_study_is_charged_once(tmp_path, opened):
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    run(trial, plan)
    trial.close()
    assert told_before(spent_file(trial.site(0), "cohort")) == {"traits 1": pytest.approx(60 / 150)}
    assert spent(trial.site(0), "traits 1")["released"] == pytest.approx(0.4)


def test_a_preview_says_what_limits_are_on_and_what_they_cost(tmp_path, opened):
    trial, _ = association(tmp_path / "all", "logistic", limits={"least_cell": 20, "grid": 0.01})
    opened.append(trial)
    told = preview(trial.site(0), trial.base / "study.toml", trial.base / "roster.json").limits
    said = "\n".join(told)
    for part in ("below 20%", "1 to 19", "would withhold", "multiples of 0.01", "allows 0.6"):
        assert part in said
