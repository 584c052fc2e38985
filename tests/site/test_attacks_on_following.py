"""Attacks on cohorts that follow a study: what a coordinator tells, and to whom."""

from dataclasses import replace

import numpy as np
import pytest
from test_following import SUMS, run
from traits import association, witnessed

from cupola.association import Association
from cupola.association.plan import StudyPlan
from cupola.errors import CupolaError, FederationError
from cupola.federation import Contribution, Failure, Question, State, Total, read_answer
from cupola.secure.open_sums import OPEN
from cupola.secure.replayed_totals import HEAR

_PLAN = {
    "name": "traits", "test": "logistic", "trait": {"column": "CC"},
    "cohorts": [{"name": str(i), "bfile": str(i)} for i in range(3)],
}  # fmt: skip


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

    ask, reach._sites.ask = reach._sites.ask, hold
    with pytest.raises(Held):
        reach.sum(question, [0, 1, 2])
    reach._sites.ask = ask
    return told[0]


def believed(reach, question, sites=(0, 1, 2)):
    return [s for s, a in reach._sites.ask(question, sites) if not isinstance(a, Failure)]


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


def test_a_public_list_is_a_list_and_costs_one_step():
    """Not a size, after which there would be one more step, and one more."""
    program = Association(StudyPlan.model_validate(_PLAN).study(), 3, public=True)
    values = {**program.start().values, "phase": "propose"}
    state = State(5, {}, values)
    for arrays in (
        {"size": np.array([9])},
        {"size": np.array([np.nan])},
        {},
        {"list": np.zeros(0, np.uint8)},
        {"list": np.zeros(100, np.uint8)},
        {"list": np.full((7, 7), np.nan)},
        {"list": np.array(3, np.uint8)},
        {"list": np.frombuffer(np.array([1 << 25, *[0] * 5], "<i8").tobytes(), np.uint8)},
    ):
        with pytest.raises(CupolaError):
            program.answer(state, {0: Contribution(arrays)})


def test_cohorts_may_be_restarted_after_every_step(tmp_path, opened):
    """And the coordinator, too, from a checkpoint some steps old, with some sites ahead."""
    trial, plan = association(tmp_path / "all", "logistic")
    opened.append(trial)
    program = Association(plan.study(), 3)
    state, states = program.start(), []
    while (ask := program.ask(state)) is not None and len(states) < 14:
        reach = witnessed(trial, *trial.open())
        states.append(state)
        reach.engine.confirm(max(-1, state.step - 3))
        told = held_total(reach, ask.question) if ask.kind == "sum" else None
        if told is not None:
            assert believed(reach, told, [1]) == [1]  # killed between two sites
            reach = witnessed(trial, *trial.open())
        answer = reach.sum if ask.kind == "sum" else reach.gather
        state = program.answer(state, answer(ask.question, ask.sites))
    state = states[-2]
    reach = witnessed(trial, *trial.open())
    for _ in range(2):
        ask = program.ask(state)
        state = program.answer(state, reach.sum(ask.question, ask.sites))
