from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from web_world import World, with_hits


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


@pytest.fixture(scope="module")
def places(world):
    """A finished association study of ada's in which cleo takes part."""
    study = world.study("ada", "association", name="seen by few")
    ada, cleo = world.visitor("ada"), world.visitor("cleo")
    token = world.invite(ada, study, "north")["north"]
    path = world.join(cleo, token, "north/chip")
    folder = world.finish(study, files=[])
    with_hits(folder)
    (folder / "run" / "ledger.jsonl").write_text("{}\n")
    return {
        "study_id": study,
        "number": "1",
        "name": "ledger.jsonl",
        "join": path.split("/")[-1],
        "action": "repeat",
        "key": "unknown",
        "answer": "decline",
    }
