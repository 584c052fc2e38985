import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import consortium as made


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch):
    """Nobody pulls the plug in these tests: what is written need not be waited for."""
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture(scope="session")
def _joined(tmp_path_factory):
    return made.consortium(tmp_path_factory.mktemp("joined") / "all", made.PLAN)


@pytest.fixture
def trial(_joined, tmp_path):
    """Three sites and a compensator that have joined a masked training; nobody was asked yet."""
    copy = made.copied(_joined, tmp_path / "all")
    yield copy
    copy.close()


@pytest.fixture(scope="session")
def _private(tmp_path_factory):
    budget = {"epsilon": 20.0, "delta": 1e-5}
    base = tmp_path_factory.mktemp("private") / "all"
    return made.consortium(base, made.PRIVATE, budget=budget)


@pytest.fixture
def private(_private, tmp_path):
    """The same with DP-SGD and a budget at every site."""
    copy = made.copied(_private, tmp_path / "all")
    yield copy
    copy.close()


@pytest.fixture
def opened():
    """Closes what a test has opened, whatever happens in it."""
    trials = []
    yield trials
    for trial in trials:
        trial.close()
