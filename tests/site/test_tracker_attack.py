"""A plan from elsewhere that names a tracker makes no site contact it."""

from __future__ import annotations

import socket
from typing import Any

import consortium as made
import pytest

from cupola.analysis import trackers
from cupola.secure import Masked


@pytest.mark.parametrize("wandb", ["online", "offline"])
def test_a_site_writes_to_no_tracker(tmp_path, monkeypatch, wandb, opened):
    called: list[Any] = []
    for name in trackers.TRACKERS:
        monkeypatch.setitem(trackers.TRACKERS, name, lambda *facts: called.append(facts))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        uri = f"http://127.0.0.1:{listening.getsockname()[1]}"
        plan = {**made.PLAN, "rounds": 1, "track": {"mlflow": uri, "wandb": wandb}}
        trial = made.consortium(tmp_path / "all", plan)  # proposes, previews, joins
        opened.append(trial)
        sites, third = trial.open()
        program = trial.training()
        state = program.start()
        reach = Masked(sites, third, trial.roster)
        ask = program.ask(state)
        total = reach.sum(ask.question, ask.sites)
        assert total.sites
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert called == []
    assert not list(tmp_path.rglob("track.json"))
    assert not list(tmp_path.rglob("wandb"))
