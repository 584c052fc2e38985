"""Real processes, killed with signal 9 or frozen: the study goes on where it was.

One party has a process of its own; the others are in this one.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from cupola.errors import FederationError
from cupola.federation import Federation, Processes, drive
from cupola.secure import Masked

PATIENT = 900.0  # seconds; on a busy machine processes start slowly


class Beside(Federation):
    """Site 0 in a process of its own, the others by another engine."""

    def __init__(self, process, others):
        super().__init__(len(others), quorum=1.0)
        self.process, self.others = process, others

    def _ask(self, question, sites):
        yield from self.process._ask(question, [site for site in sites if site == 0])
        yield from self.others._ask(question, [site for site in sites if site != 0])


@pytest.fixture
def process(trial, monkeypatch):
    """Starts a party; at: the durable write at which its process dies, once."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    made = []

    def start(kind, folder, at=None):
        facts = {"folder": str(folder), "study": trial.study, "at": at}
        made.append(Processes([(f"killers:{kind}", facts)], timeout=PATIENT))
        return made[-1]

    yield start
    for engine in made:
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
@pytest.mark.parametrize("kind", ["site", "compensator"])
def test_a_party_killed_with_signal_nine(trial, process, undisturbed, kind):
    sites, third = trial.open()
    if kind == "site":  # while it stores its answer
        folder = trial.site(0)
        sites = Beside(process("site", folder, at=5), sites)
    else:  # when it has decided, and told nothing
        folder = trial.compensator
        third = process("compensator", folder, at=3)
    state, reasons = study(trial, Masked(sites, third, trial.roster))
    assert same(state, undisturbed)
    assert any("dead" in reason for reason in reasons)
    assert (folder / "died").exists()


@pytest.mark.slow
def test_a_frozen_site_is_late_and_comes_back(trial, process, undisturbed):
    others, third = trial.open()
    own = process("site", trial.site(0))
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
