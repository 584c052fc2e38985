"""Parts of a party's folder that are put back from yesterday, or lost: noticed where they are, by
the other parts. (The whole folder put back is noticed by the coordinator: `test_receipts`.)"""

import shutil

import consortium as made
import pytest
from test_following import run
from test_site_faults import Coordinator
from test_total_limits import say
from traits import GENOME, association, witnessed

from cupola.association.own_cohort import released_file
from cupola.errors import FederationError
from cupola.federation import read_answer
from cupola.secure.roster import Roster
from cupola.site import join_compensator, join_site
from cupola.site.consent import spent_file

REFUSED = "data or files are not usable"


def next_study(trial, document):
    """The same parties join a second study, with the same data."""
    first = trial.roster
    roster = Roster("second", first.sites, first.compensator, changes=first.changes)
    (trial.base / "next.json").write_text(roster.to_json())
    for i in range(3):
        join_site(trial.site(i), document, trial.base / "next.json")
    join_compensator(trial.compensator, document, trial.base / "next.json")
    return made.Consortium(trial.base, trial.plan, roster)


def lose(path, how, old):
    path.unlink()
    if how == "put back":
        path.write_bytes(old)


@pytest.mark.parametrize("how", ["put back", "lost"])
def test_a_budget_is_not_refilled_for_the_next_study(private, how):
    trial = private
    book = spent_file(trial.site(0), "patients")
    Coordinator(trial).go()
    trial.close()
    first_line = book.read_bytes().splitlines(keepends=True)[0]
    lose(book, how, first_line)
    second = next_study(trial, trial.base / "plan.toml")
    with pytest.raises(FederationError, match=REFUSED):
        Coordinator(second).go()
    second.close()


@pytest.mark.parametrize("how", ["put back", "lost"])
def test_numbers_released_are_not_forgotten_for_the_next_study(tmp_path, opened, how):
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    say(trial, "released", 0.5)
    path = released_file(spent_file(trial.site(0), "cohort"))
    run(trial, plan)
    trial.close()
    lose(path, how, b"")
    second = next_study(trial, trial.base / "study.toml")
    opened.append(second)
    reach = witnessed(second, *second.open())
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match=REFUSED):
        run(second, plan, reach=reach)


@pytest.mark.parametrize("how", ["put back", "lost"])
def test_whom_step_one_was_made_for_is_not_forgotten_for_the_next_study(tmp_path, opened, how):
    trial, plan = association(tmp_path / "all", "linear", whole_genome=GENOME)
    opened.append(trial)
    path = spent_file(trial.site(0), "cohort").with_suffix(".stepones.jsonl")
    run(trial, plan)
    trial.close()
    assert path.read_bytes()
    lose(path, how, b"")
    second = next_study(trial, trial.base / "study.toml")
    opened.append(second)
    reach = witnessed(second, *second.open())
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match=REFUSED):
        run(second, plan, reach=reach)


def test_a_study_put_back_beside_a_newer_book_gives_no_second_noise(private):
    """A charge is not paid twice for the same question: it must not be answered twice either."""
    trial = private
    place = next((trial.site(0) / "studies").iterdir())
    shutil.copytree(place, trial.base / "old")
    asked = []
    Coordinator(trial).go(lambda sites, _: asked.append(sites))
    trial.close()
    shutil.rmtree(place)
    shutil.copytree(trial.base / "old", place)
    first = next(data for site, data, _ in asked[0].seen if site == 0)
    sites, _ = trial.open()
    assert REFUSED in read_answer(sites.parties[0].answer(first)).code


@pytest.mark.parametrize("name", ["ledger.jsonl", "compensator.jsonl"])
def test_a_compensator_misses_what_it_has_lost(trial, name):
    asked = []
    Coordinator(trial).go(lambda _, third: asked.append(third))
    trial.close()
    next(trial.compensator.glob(f"studies/*/{name}")).unlink()
    _, third = trial.open()
    for _ in range(2):
        answer = third.parties[0].answer(asked[0].seen[-1][1])
        assert REFUSED in read_answer(answer).code
