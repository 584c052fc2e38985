"""A real process that is frozen: the study goes on where it was. (Kills: `test_kill_phases`.)

One party has a process of its own; the others are in this one.
"""

import os
import signal
import time

import pytest

from cupola.engines import Processes
from cupola.errors import FederationError
from cupola.federation import Federation, drive
from cupola.secure import Masked

PATIENT = 900.0  # seconds; on a busy machine processes start slowly


class Beside(Federation):
    """Site 0 in a process of its own, the others by another engine."""

    def __init__(self, process, others):
        super().__init__(len(others), quorum=1.0)
        self.process, self.others = process, others

    def ask(self, question, sites):
        yield from self.process.ask(question, [site for site in sites if site == 0])
        yield from self.others.ask(question, [site for site in sites if site != 0])


@pytest.fixture
def process(trial):
    """Site 0 in a process of its own, with a fresh interpreter."""
    facts = {"folder": str(trial.site(0)), "study": trial.study}
    engine = Processes([("cupola.site:open_site", facts)], timeout=PATIENT)
    yield engine
    engine.close()


def study(trial, reach):
    """Goes on after failures; the last state, and the reasons."""
    program = trial.training()
    states, reasons = [program.start()], []
    for _ in range(5):
        try:
            return drive(program, reach, states[-1], states.append), reasons
        except FederationError as error:
            reasons.append(str(error))
    raise AssertionError(reasons)


@pytest.fixture(scope="session")
def undisturbed(_joined, tmp_path_factory):
    import consortium as made

    copy = made.copied(_joined, tmp_path_factory.mktemp("undisturbed") / "all")
    sites, third = copy.open()
    state = drive(copy.training(), Masked(sites, third, copy.roster))
    copy.close()
    return state


def same(one, two):
    names = [name for name in one.arrays if name.startswith("model/")]
    return all((one.arrays[name] == two.arrays[name]).all() for name in names)


@pytest.mark.slow
def test_a_frozen_site_is_late_and_comes_back(trial, process, undisturbed):
    others, third = trial.open()
    own = process
    program = trial.training()
    reach = Masked(Beside(own, others), third, trial.roster)
    first = program.ask(program.start())
    state = program.answer(program.start(), reach.sum(first.question, first.sites))
    frozen = own._children[0]._process.pid
    os.kill(frozen, signal.SIGSTOP)
    own.timeout, began = 1.0, time.monotonic()
    try:
        with pytest.raises(FederationError, match="site 0: late"):
            drive(program, reach, state)
        assert time.monotonic() - began < 60
    finally:
        os.kill(frozen, signal.SIGCONT)
    own.timeout = PATIENT
    assert same(drive(program, reach, state), undisturbed)
