"""An analysis of a user's own in the web: from its plan's text to its report."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from web_world import World

from cupola.web import worker
from cupola.web.launcher import Job

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PLAN = 'kind = "counting:Counting"\nname = "how many"\ntimes = 5\n'


class HereAndNow:
    """A launcher that carries everything out in this process, at once."""

    def start(self, job: Job, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        made = json.loads(json.dumps(vars(job)))
        (folder / "job.json").write_text(json.dumps(made))
        if job.kind == "check":
            worker._foresee(folder, made)
        else:
            with (folder / "events.jsonl").open("a") as file:
                worker._carry_out(folder, made, worker._Events(file))

    def stop(self, folder: Path) -> None: ...

    def alive(self, folder: Path) -> bool:
        del folder
        return False

    def room(self) -> bool:
        return True


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A server that allows modules which are installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("signal.alarm", lambda _: None)
    made = World(tmp_path / "web", modules=("counting", "pooled_regression"))
    made.launcher = made.app.state.launcher = HereAndNow()
    yield made
    made.app.state.sessions.kw["bind"].dispose()


def test_it_is_made_run_followed_and_read(own):
    ada = own.visitor("ada")
    made = own.post(ada, "/studies/upload", text=PLAN)
    assert made.status_code == 303, made.text
    where = made.headers["location"]
    assert "being worked out" in ada.get(where).text
    page = ada.get(where).text
    for part in ("counting:Counting", "Who learns what", "count samples", "every site&#x27;s own"):
        assert part in page, part
    assert "Invite sites" in page  # its plan has a key 'sites'
    assert "The plan as text" in ada.get(f"{where}/edit").text
    changed = own.post(ada, f"{where}/edit", text=PLAN.replace("times = 5", "times = 6"))
    assert changed.status_code == 303
    other = own.post(ada, f"{where}/edit", text='name = "x"\nrounds = 2')
    assert other.status_code == 422  # of another kind

    assert own.post(ada, f"{where}/start").status_code == 303
    own.sweep()
    own.sweep()
    folder = own.settings.run_folder(where.rsplit("/", 1)[-1], 1)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert {"phase": "Counting", "done": 6, "of": 6} in [
        {key: event[key] for key in ("phase", "done", "of")} for event in events
    ]
    page = ada.get(f"{where}/runs/1").text
    assert "finished" in page
    assert "How many there are" in page
    assert ada.get(f"{where}/runs/1/files/count.txt").text == "60\n"
    assert "how many" in ada.get("/").text
    assert ada.get("/compare").status_code == 200
    stream = ada.get(f"{where}/runs/1/stream").text
    told = json.loads(next(s for s in stream.splitlines() if s.startswith("data: "))[6:])
    assert told["rounds"][-1]["curves"]["Count"] == 60


def test_it_needs_no_folder_of_data(own):
    """Which a server has only where sites choose their files from one."""
    ada = own.visitor("ada")
    for name in ("north", "south", "west"):
        for end in ("bed", "bim", "fam"):
            (own.settings.data / name / f"chip.{end}").unlink()
        (own.settings.data / name).rmdir()
    own.settings.data.rmdir()
    where = own.post(ada, "/studies/upload", text=PLAN).headers["location"]
    own.post(ada, f"{where}/start")
    own.sweep()
    own.sweep()
    assert "How many there are" in ada.get(f"{where}/runs/1").text


def test_sites_read_what_it_asks_before_they_consent(own):
    ada, cleo = own.visitor("ada"), own.visitor("cleo")
    where = own.post(ada, "/studies/upload", text=PLAN).headers["location"]
    tokens = own.invite(ada, where.rsplit("/", 1)[-1], "north", "south")
    asked = own.post(cleo, "/join", token=tokens["north"]).headers["location"]
    cleo.get(asked)
    page = cleo.get(asked).text
    assert "how many samples there are" in page
    assert "5 times" in page
    assert own.post(cleo, f"{asked}/accept").status_code == 303


def test_code_that_the_server_does_not_allow_is_not_imported(tmp_path):
    sys.modules.pop("counting", None)
    plain = World(tmp_path)
    ada = plain.visitor("ada")
    answer = plain.post(ada, "/studies/upload", text=PLAN)
    assert answer.status_code == 422
    assert "--module counting" in answer.text
    assert "counting" not in sys.modules
    plain.app.state.sessions.kw["bind"].dispose()


def test_a_study_whose_code_is_no_longer_allowed_is_not_opened(own, tmp_path):
    ada = own.visitor("ada")
    where = own.post(ada, "/studies/upload", text=PLAN).headers["location"]
    own.app.state.sessions.kw["bind"].dispose()
    sys.modules.pop("counting", None)
    later = World(tmp_path / "web", people=False)
    ada = later.visitor("ada")
    answer = ada.get(where)
    assert answer.status_code == 422
    assert "--module counting" in answer.text
    assert ada.get("/").status_code == 200
    assert "counting" not in sys.modules
    later.app.state.sessions.kw["bind"].dispose()


def test_the_example_of_the_docs_is_one(own):
    ada, plan = own.visitor("ada"), (EXAMPLES / "pooled_regression.toml").read_text()
    where = own.post(ada, "/studies/upload", text=plan).headers["location"]
    assert "being worked out" in ada.get(where).text
    page = ada.get(where).text
    assert "moments" in page
    assert "every site&#x27;s own sums" in page
    assert own.post(ada, f"{where}/start").status_code == 303
    own.sweep()
    own.sweep()
    folder = own.settings.run_folder(where.rsplit("/", 1)[-1], 1)
    found = json.loads((folder / "run" / "result.json").read_text())
    assert found["status"] == "finished"
    assert found["beta"]["bmi"] == pytest.approx(787.2, abs=0.1)
    assert "finished" in ada.get(f"{where}/runs/1").text
