"""A site that follows a program: what it answers, hears, remembers and refuses."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from cupola.engines import InProcess
from cupola.errors import DataError, FederationError
from cupola.federation import (
    Ask,
    Contribution,
    Declined,
    Question,
    Replay,
    Spec,
    State,
    drive,
    task,
)
from cupola.federation.replay import OFF_PATH, OVER, Once, SavedState


@task("replayed mean")
def _mean(site, question):
    centre = float(question.arrays["centre"][0])
    return Contribution({"sum": np.array([site.data - centre])})


@task("replayed name")
def _name(site, question):  # noqa: ARG001
    return Contribution({"name": np.array([site.index])})


@dataclass
class Means:
    """Asks for sums around the mean so far; a gather in between that decides nothing; and a number
    that the coordinator brings along."""

    sites: int
    start_at: float | None = 0.5

    def start(self):
        return State()

    def ask(self, state):
        if state.step == 0:
            own = {} if self.start_at is None else {"centre": np.array([self.start_at])}
            return Ask("alone", Question("centre", own, step=0), [])
        everybody = list(range(self.sites))
        if state.step == 2:
            asked = Question("replayed name", expects={"name": Spec((1,), "int")}, decides=False)
            return Ask("gather", replace(asked, step=2), everybody)
        if state.step == 5:
            return None
        expects = {"sum": Spec((1,), "float", 100.0)}
        arrays = {"centre": state.arrays["centre"]}
        return Ask("sum", Question("replayed mean", arrays, {}, expects, state.step), everybody)

    def answer(self, state, reply):
        if state.step == 0:
            told = self.start_at if self.start_at is not None else reply[0].arrays["centre"][0]
            return state.next({"centre": np.array([told])})
        if state.step == 2:
            return state.next()
        return state.next({"centre": state.arrays["centre"] + reply.arrays["sum"] / self.sites})


class Numbers:
    def __len__(self):
        return 3

    def data(self, site):
        return float(site)

    def workspace(self):
        return None


def heard(replay, until):
    """Let a replay hear an honest run up to a step."""
    program, reach = Means(3), InProcess(Numbers())
    state = program.start()
    while state.step < until:
        ask = program.ask(state)
        reply = {0: Contribution(ask.question.arrays)}
        if ask.kind == "sum":
            replay.check(ask.question)
            reply = reach.sum(ask.question, ask.sites)
        elif ask.kind == "gather":
            reply = reach.gather(ask.question, ask.sites)
        if ask.question.decides:
            replay.hear(state.step, reply)
        state = program.answer(state, reply)
    return program, state


def test_the_question_that_is_due_is_answered_and_no_other():
    replay = Replay(Means(3, None))
    program, state = heard(replay, 3)
    due = program.ask(state).question
    replay.check(due)
    for other in (
        replace(due, arrays={"centre": np.nextafter(due.arrays["centre"], 9)}),
        replace(due, task="replayed name"),
        replace(due, options={"more": 1}),
        replace(due, step=1),
    ):
        with pytest.raises(Declined, match=OFF_PATH):
            replay.check(other)
    with pytest.raises(Declined, match="step 3 was not told"):
        replay.check(replace(due, step=4))


def test_what_decides_nothing_need_not_be_heard_and_the_end_is_the_end():
    replay = Replay(Means(3, None))
    heard(replay, 5)
    assert replay.due() is None
    with pytest.raises(Declined, match=OVER):
        replay.check(Question("replayed mean", step=5))


def test_a_total_is_told_even_if_it_decides_nothing():
    class Undecided(Means):
        def ask(self, state):
            ask = super().ask(state)
            if ask is None or ask.kind != "sum":
                return ask
            return replace(ask, question=replace(ask.question, decides=False))

    replay = Replay(Undecided(3, None))
    replay.hear(0, {0: Contribution({"centre": np.array([0.5])})})
    before, due = replay.state, replay.due()
    for refused in (
        lambda: replay.check(replace(due.question, step=2)),
        lambda: replay.hear(2, {}),
    ):
        with pytest.raises(Declined, match="the total of step 1 was not told"):
            refused()
    assert replay.state is before
    replay.check(due.question)


def test_what_was_heard_is_not_heard_twice_and_nothing_is_skipped():
    replay = Replay(Means(3, None))
    heard(replay, 2)
    before = replay.state
    replay.hear(0, {0: Contribution({"centre": np.array([9.0])})})
    assert replay.state is before
    with pytest.raises(Declined, match="was not told"):
        replay.hear(4, None)


def test_a_restarted_site_goes_on_where_it_was(tmp_path):
    saved = SavedState(tmp_path / "replay")
    replay = Replay(Means(3, None), save=saved.save)
    program, state = heard(replay, 4)
    again = SavedState(tmp_path / "replay")
    restarted = Replay(Means(3, None), again.load(), save=again.save)
    restarted.check(program.ask(state).question)
    assert len(list((tmp_path / "replay").glob("*.npy"))) == 1  # what is no longer needed is gone


def test_every_damaged_byte_of_what_was_saved_is_noticed(tmp_path):
    saved = SavedState(tmp_path)
    saved.save(State(3, {"a": np.arange(5.0), "b": np.zeros((2, 2), np.int32)}, {"x": [1.5, "y"]}))
    assert SavedState(tmp_path).load().values == {"x": [1.5, "y"]}
    for path in sorted(tmp_path.iterdir()):
        whole = path.read_bytes()
        for place in range(len(whole)):
            changed = bytearray(whole)
            changed[place] ^= 4
            path.write_bytes(bytes(changed))
            with pytest.raises(DataError, match="damaged"):
                SavedState(tmp_path).load()
        path.unlink()
        if path.suffix == ".npy":
            with pytest.raises(DataError, match="damaged"):
                SavedState(tmp_path).load()
        path.write_bytes(whole)


def test_simulated_sites_follow_too_and_every_step_is_computed_once():
    counted = []

    class Counted(Means):
        def answer(self, state, reply):
            counted.append(state.step)
            return super().answer(state, reply)

    program, reach = Once(Counted(3)), InProcess(Numbers(), quorum=1.0)
    reach.follow(Replay(program))
    honest = drive(Means(3), InProcess(Numbers()))
    states = []

    def stop(state):
        states.append(state)
        if state.step == 3:
            due = program.ask(state).question
            crafted = replace(due, arrays={"centre": np.array([7.0])})
            with pytest.raises(FederationError, match=OFF_PATH):
                reach.sum(crafted, [0, 1, 2])

    found = drive(program, reach, None, stop)
    assert len(states) == len(counted) == 5
    assert found.arrays["centre"] == honest.arrays["centre"]


def test_a_state_that_could_not_be_saved_was_not_reached():
    """Else a site answers on what it will have forgotten after a restart, and is behind for good:
    the coordinator, told 'heard before', never tells it again."""

    def full(state):
        if state.step == 2:
            raise ValueError("cannot be written")

    replay = Replay(Means(3, None), save=full)
    with pytest.raises(ValueError):
        heard(replay, 2)
    assert replay.step == 1


def test_a_question_is_answered_by_those_whom_the_program_asks():
    class Some(Means):
        def ask(self, state):
            ask = super().ask(state)
            return ask if ask is None or ask.kind == "alone" else replace(ask, sites=[0, 1])

    replay = Replay(Some(3, None))
    program, state = heard(replay, 1)
    due = program.ask(state).question
    replay.check(due, 1)
    with pytest.raises(Declined, match=OFF_PATH):
        replay.check(due, 2)
