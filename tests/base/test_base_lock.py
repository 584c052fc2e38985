"""One process at a time."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from pathlib import Path

from cupola.base.files import is_held, take

HOLD = """
import sys, time
from cupola.base.files import take
file = open(sys.argv[1], "ab")
print(take(file), flush=True)
time.sleep(float(sys.argv[2]))
"""


def holder(path: Path, seconds: float) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), str(seconds)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child.stdout as said:
        assert said.readline() == "True\n"
    return child


def test_a_lock_is_held_until_its_holder_dies(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_held(path)
    child = holder(path, 60)
    with path.open("ab") as file:
        assert is_held(path)
        assert not take(file)
        child.kill()
        assert take(file, wait=20)
        child.wait()
    assert not is_held(path)


def test_one_can_wait_for_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = holder(path, 0.5)
    with path.open("ab") as file:
        start = time.monotonic()
        assert not take(file, wait=0.1)
        assert time.monotonic() - start < 0.5
        assert take(file.fileno(), wait=math.inf)
    child.wait()


def test_a_child_that_inherits_it_goes_on_holding_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with path.open("ab") as file:
        assert take(file)
        os.set_inheritable(file.fileno(), True)
        sleeping = [sys.executable, "-c", "input()"]
        child = subprocess.Popen(sleeping, stdin=subprocess.PIPE, pass_fds=[file.fileno()])
    assert is_held(path)
    child.communicate(b"\n")
    assert not is_held(path)
