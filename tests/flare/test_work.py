"""What computes a party's answers may crash: the job lives on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cupola.engines.child_process import DIED, STOPPED, ChildProcess

pytestmark = pytest.mark.slow  # every process loads torch


@pytest.fixture
def worker(monkeypatch):
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    made = ChildProcess("crashing:open_crashing", {"greeting": "A"}, os.environ)
    yield made
    made.stop()


def test_a_computation_that_crashes_costs_one_answer(worker):
    def going():
        return False

    assert worker.ask(b"well", going) == b"Awell"
    first = worker._process.pid
    assert worker.ask(b"crash", going) == DIED
    assert worker.ask(b"well", going) == b"Awell"
    assert worker._process.pid != first
    worker._process.kill()  # between two questions
    worker._process.wait()
    assert worker.ask(b"again", going) == b"Aagain"
    assert worker.ask(b"hang", lambda: True) == STOPPED  # the job was told to end
    assert worker._process is None
