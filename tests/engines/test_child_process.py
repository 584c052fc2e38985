"""What computes answers may crash, hang or talk: that costs one answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from cupola.engines.child_process import DEAD, DIED, LATE, STOPPED, ChildProcess


def going():
    return False


@pytest.fixture
def child():
    made = ChildProcess("crashing:open_crashing", {"greeting": "A"}, os.environ)
    yield made
    made.stop()


def test_a_computation_that_crashes_costs_one_answer(child):
    assert child.ask(b"well", going) == b"Awell"
    first = child._process.pid
    assert child.ask(b"crash", going) == DIED
    assert child.ask(b"well", going) == b"Awell"
    assert child._process.pid != first
    child._process.kill()  # between two questions
    child._process.wait()
    assert child.ask(b"again", going) == b"Aagain"
    assert child.ask(b"hang", lambda: True) == STOPPED  # the job was told to end
    assert child._process is None


def test_late_and_dead_children_have_codes_and_late_answers_are_thrown_away(child):
    slow = child.send(b"slow")
    assert child.receive(slow, time.monotonic() + 0.01) == LATE
    well = child.send(b"well")
    assert child.receive(well, time.monotonic() + 60) == b"Awell"  # not the slow one's
    crash = child.send(b"crash")
    assert [child.receive(crash, time.monotonic() + 60) for _ in range(2)] == [DEAD, DEAD]


def test_what_a_computation_prints_is_no_answer(child):
    assert child.ask(b"print", going) == b"Aprint"


def test_of_an_answer_that_is_too_large_nothing_is_read(child):
    assert child.receive(child.send(b"large", 100), time.monotonic() + 60) == DEAD
    assert child.receive(child.send(b"large", 1 << 21), time.monotonic() + 60) == b"A" * (1 << 20)


def test_the_parent_needs_no_numerical_code():
    code = "import sys, cupola.engines.child_process; print({*sys.modules} & {'numpy', 'torch'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
