"""What plans and studies leave behind stays what it was: a restructuring changes no result."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from record import FILE, cases, probe

GOLDEN = json.loads(FILE.read_text())
CASES = cases()


def test_every_case_is_recorded():
    assert set(GOLDEN["cases"]) == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_that_were_recorded(name, tmp_path):
    found, told = CASES[name](tmp_path), GOLDEN["cases"][name]
    if probe() == GOLDEN["probe"]:
        assert found == told
        return
    assert found["status"] == told["status"]
    for key, value in told.items():
        if isinstance(value, float):
            assert found[key] == pytest.approx(value, rel=1e-3), key
