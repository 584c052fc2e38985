"""Real processes, killed with signal 9 or frozen: the study goes on where it was."""

import os
import signal
import time
from pathlib import Path

import pytest

from cupola.errors import FederationError
from cupola.federation import Processes, drive
from cupola.secure import Masked

PATIENT = 900.0  # seconds; on a busy machine processes start slowly


@pytest.fixture
def engines(trial, monkeypatch):
    """Makes both engines; at: party -> the durable write at which its process dies."""
    here = str(Path(__file__).parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    made = []

    def make(at=None):
        at = at or {}
        facts = {"study": trial.study}
        sites = [
            ("killers:site", {**facts, "folder": str(trial.site(i)), "at": at.get(i)})
            for i in range(3)
        ]
        third = {**facts, "folder": str(trial.compensator), "at": at.get("compensator")}
        made.append(Processes(sites, quorum=1.0, timeout=PATIENT))
        made.append(Processes([("killers:compensator", third)], timeout=PATIENT))
        return made[-2], made[-1]

    yield make
    for engine in made:
        engine.close()


def study(trial, sites, third):
    """Goes on after failures; the last state, and the reasons."""
    program = trial.training()
    reach = Masked(sites, third, trial.roster)
    states, reasons = [program.start()], []
    for _ in range(8):
        try:
            return drive(program, reach, states[-1], states.append), reasons
        except FederationError as error:
            reasons.append(str(error))
    raise AssertionError(reasons)


def undisturbed(trial, tmp_path):
    import consortium as made

    copy = made.copied(trial, tmp_path / "undisturbed")
    sites, third = copy.open()
    state = drive(copy.training(), Masked(sites, third, copy.roster))
    copy.close()
    return state


def same(one, two):
    names = [name for name in one.arrays if name.startswith("model/")]
    return all((one.arrays[name] == two.arrays[name]).all() for name in names)


@pytest.mark.slow
def test_sites_and_compensator_killed_with_signal_nine(trial, engines, tmp_path):
    # A site before it charged, one while it stores its answer, the compensator after it decided.
    sites, third = engines({0: 2, 1: 5, "compensator": 2})
    state, reasons = study(trial, sites, third)
    assert same(state, undisturbed(trial, tmp_path))
    assert any("dead" in reason for reason in reasons)
    for folder in (trial.site(0), trial.site(1), trial.compensator):
        assert (folder / "died").exists()


@pytest.mark.slow
def test_a_frozen_site_is_late_and_comes_back(trial, engines, tmp_path):
    sites, third = engines()
    program = trial.training()
    reach = Masked(sites, third, trial.roster)
    first = program.ask(program.start())
    state = program.answer(program.start(), reach.sum(first.question, first.sites))
    frozen = sites._children[1]._process.pid
    os.kill(frozen, signal.SIGSTOP)
    sites.timeout, began = 1.0, time.monotonic()
    try:
        with pytest.raises(FederationError, match="site 1: late"):
            drive(program, reach, state)
        assert time.monotonic() - began < 30
    finally:
        os.kill(frozen, signal.SIGCONT)
    sites.timeout = PATIENT
    assert same(drive(program, reach, state), undisturbed(trial, tmp_path))
