"""Which device a plan and a site get."""

import pytest

from cupola.errors import PlanError
from cupola.training import pick_device


def test_a_site_chooses_its_own_device(monkeypatch):
    monkeypatch.setenv("CUPOLA_DEVICE", "cpu")
    assert pick_device("auto").type == "cpu"
    monkeypatch.setenv("CUPOLA_DEVICE", "abacus")
    assert pick_device("cpu").type == "cpu"  # the plan's own word counts
    with pytest.raises(PlanError, match="'abacus' is not one of auto, cpu, cuda, mps"):
        pick_device("auto")
