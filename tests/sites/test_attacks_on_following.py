"""Attacks on cohorts that follow a study: what a coordinator tells, and to whom."""

from dataclasses import replace

import numpy as np
import pytest
from test_following import SUMS, run
from traits import association

from cupola.errors import FederationError
from cupola.federation import Failure, Question, Total, read_answer
from cupola.secure.following import HEAR
from cupola.secure.open_sums import OPEN


def held_total(reach, question):
    """What an honest coordinator would tell of a question; nobody is told."""
    told = []

    class Held(Exception):
        pass

    def hold(asked, sites):
        if asked.task == HEAR:
            told.append(asked)
            raise Held
        return ask(asked, sites)

    ask, reach._sites._ask = reach._sites._ask, hold
    with pytest.raises(Held):
        reach.sum(question, [0, 1, 2])
    reach._sites._ask = ask
    return told[0]


def believed(reach, question, sites=(0, 1, 2)):
    return [s for s, a in reach._sites._ask(question, sites) if not isinstance(a, Failure)]


@pytest.mark.parametrize("sums", SUMS)
def test_the_total_of_nobody_is_not_believed(tmp_path, opened, sums):
    """Zeros, witnessed by no site: without pads anybody can make the witness, which is zero."""
    trial, plan = association(tmp_path / "all", "logistic", sums)
    opened.append(trial)
    program, reach, state = run(trial, plan, until=lambda ask: ask.question.task == "gwas agree")
    told = held_total(reach, program.ask(state).question)
    nothing = {name: array * 0 for name, array in told.arrays.items()}
    assert not believed(reach, replace(told, arrays=nothing, options={"sites": []}))
    assert believed(reach, told) == [0, 1, 2]


def test_the_total_of_some_sites_is_not_believed(tmp_path, opened):
    """Who sees every answer could lead each site along a path of its own."""
    trial, plan = association(tmp_path / "all", "logistic", "plain")
    opened.append(trial)
    program, reach, state = run(trial, plan, until=lambda ask: ask.question.task == "gwas agree")
    seen = len(reach._sites.seen)
    told = held_total(reach, program.ask(state).question)
    answers = [read_answer(answer) for _, _, answer in reach._sites.seen[seen:]]
    for chosen in ([0], [0, 1], [1, 2]):
        arrays = {
            name: sum(answers[s].arrays[OPEN + name] for s in chosen).astype(array.dtype)
            for name, array in told.arrays.items()
        }
        assert not believed(reach, replace(told, arrays=arrays, options={"sites": chosen})), chosen
    assert believed(reach, told) == [0, 1, 2]


def test_the_first_cohorts_list_is_its_own_and_cannot_be_left_out(tmp_path, opened):
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    _, reach, state = run(trial, plan, until=lambda ask: ask.kind == "gather")
    for sites in ([], [1], [0, 1], [True], [0.0], "0", None):
        question = Question(HEAR, {}, {"sites": sites}, step=state.step, round=state.step)
        assert not believed(reach, question), sites


@pytest.mark.parametrize("sums", SUMS)
def test_nobody_goes_on_with_a_total_of_nobody(tmp_path, opened, sums):
    """The attack in full: covariates around zero instead of around their mean."""
    trial, plan = association(tmp_path / "all", "logistic", sums)
    opened.append(trial)
    program, reach, state = run(trial, plan, until=lambda ask: ask.question.task == "gwas moments")
    told = held_total(reach, program.ask(state).question)
    nothing = {name: array * 0 for name, array in told.arrays.items()}
    believed(reach, replace(told, arrays=nothing, options={"sites": []}))
    astray = program.answer(state, Total({"sums": np.zeros(2)}))
    reach.engine.quorum = 1.0
    with pytest.raises(FederationError, match="was not told"):
        reach.engine.sum(replace(program.ask(astray).question, witnessed=True), [0, 1, 2])
