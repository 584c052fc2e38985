from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from web_world import World


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One server for all tests: they make their own studies, and may not break it. On SQLite, or
    as test_whole.py says."""
    made = World(tmp_path_factory.mktemp("web"), os.environ.get("CUPOLA_TEST_DATABASE"))
    yield made
    made.app.state.sessions.kw["bind"].dispose()


@pytest.fixture(autouse=True)
def _calm(request: pytest.FixtureRequest) -> None:
    if "world" in request.fixturenames:
        request.getfixturevalue("world").calm()
