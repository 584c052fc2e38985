"""Live streams, files, the table of variants, and the comparison."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from web_world import variants

from cupola.association import hit_index as hits
from cupola.web.launcher import ChildProcess
from cupola.web.models import Run
from cupola.web.progress import Follow, site_states

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
from folders import make_run


@pytest.fixture
def started(world):
    ada, study = world.known("ada"), world.study("ada")
    world.post(ada, f"/studies/{study}/start")
    world.sweep()
    folder = world.settings.run_folder(study, 1)
    yield ada, study, folder
    world.launcher.end(folder, "finished")
    world.sweep()


def _messages(answer):
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_the_stream_tells_rounds_once_and_goes_on_after_a_break(world, started):
    ada, study, folder = started
    make_run(folder / "run", rounds=5)
    (folder / "events.jsonl").write_text('{"phase":"training","done":5,"of":5,"left":0}\n')
    world.launcher.end(folder, "finished")
    world.sweep()
    url = f"/studies/{study}/runs/1/stream"
    first = ada.get(url)
    told = _messages(first)
    assert [r["round"] for r in told[0]["rounds"]] == [1, 2, 3, 4, 5]
    assert told[-1]["over"]
    mark = first.text.split("id: ")[1].split("\n")[0]
    again = _messages(ada.get(url, headers={"Last-Event-ID": mark}))
    assert again[0]["rounds"] == []
    assert again[0]["events"] == []
    assert _messages(ada.get(url, headers={"Last-Event-ID": "../x:5,run/history.jsonl:zz"}))


def test_files_that_grow_or_are_cut_are_followed(tmp_path):
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "history.jsonl"
    follow = Follow(tmp_path)
    assert follow.rounds() == []
    path.write_text('{"round":1}\n{"rou')
    assert [r["round"] for r in follow.rounds()] == [1]
    path.write_text('{"round":1}\n{"round":2}\nnot json\n{"round":3}\n')
    assert [r["round"] for r in follow.rounds()] == [2, 3]
    path.write_text('{"round":1}\n')  # a resume cut it
    assert [r["round"] for r in follow.rounds()] == [1]


def test_the_state_of_sites_is_that_of_the_last_question(tmp_path):
    (tmp_path / "run").mkdir()
    lines = [
        {"step": 1, "task": "train", "sites": [0, 1, 2, -1], "failed": {}},
        {"step": 2, "task": "train", "sites": [0], "failed": {"1": "timeout", "2": "died"}},
    ]
    (tmp_path / "run" / "ledger.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    found = site_states(tmp_path, ["a", "b", "c", "d"])
    assert [s["state"] for s in found] == ["answered", "late", "dropped", "present"]
    (tmp_path / "run" / "ledger.jsonl").unlink()  # real sites: it comes at the end
    (tmp_path / "away.json").write_text('{"away": ["b"], "asked": "training, step 7"}')
    found = site_states(tmp_path, ["a", "b"])
    assert [s["state"] for s in found] == ["working", "late"]
    assert found[0]["last"] == "training, step 7"
    (tmp_path / "away.json").write_text("[]")
    assert site_states(tmp_path, ["a"])[0]["state"] == "present"


PLACES = [
    "../result.json",
    "..%2f..%2fsecret",
    "%2e%2e/secret",
    "/etc/passwd",
    "....//secret",
    "run/result.json",
    "worker.lock",
    "job.json",
    "result.json%00.txt",
    "secret",
]


@pytest.mark.parametrize("name", PLACES)
def test_downloads_lead_nowhere_else(world, started, name):
    ada, study, folder = started
    world.launcher.end(folder, "finished")
    world.sweep()
    assert ada.get(f"/studies/{study}/runs/1/files/result.json").status_code == 200
    answer = ada.get(f"/studies/{study}/runs/1/files/{name}")
    assert answer.status_code in (400, 404)
    assert world.settings.secret not in answer.content
    assert ada.get(f"/static/{name}").status_code in (400, 404)


def test_pages_of_variants_are_those_of_the_sorted_table(tmp_path):
    table = variants(333)
    path = tmp_path / "hits.sqlite"
    hits.build(path, table)
    p = np.where(np.isnan(table.log10_p), np.inf, table.log10_p)
    order = np.argsort(p, kind="stable")
    for page in (1, 2, 7):
        found = hits.read(path, page=page)
        expected = [table.fields[i] for i in order[(page - 1) * hits.PAGE : page * hits.PAGE]]
        assert [cells for _, cells in found.rows] == expected
    assert hits.read(path, page=99).page == 7
    for search in ("rs7", "RS14X", "rs"):
        wanted = [
            table.fields[i] for i in order if table.name[i].lower().startswith(search.lower())
        ]
        found = hits.read(path, search)
        assert found.total == len(wanted)
        assert [cells for _, cells in found.rows] == wanted[: hits.PAGE]
    low, high = 10**7, 6 * 10**7
    inside = [i for i in order if table.chromosome[i] == 5 and low <= table.position[i] <= high]
    found = hits.read(path, f"5:{low:,}-{high}")
    assert [cells for _, cells in found.rows] == [table.fields[i] for i in inside]
    for search in ("' OR 1=1 --", "%", "x'; DROP TABLE hit; --", "99:1-2", "5:", "\U0010ffff"):
        assert hits.read(path, search).total == 0


def test_the_comparison_shows_runs_of_ones_own(world):
    ada, ids = world.known("ada"), []
    for recipe in ("fedavg", "fedprox"):
        study = world.study("ada", name=f"compare {recipe}", recipe=recipe)
        world.post(ada, f"/studies/{study}/start")
        world.sweep()
        make_run(world.settings.run_folder(study, 1) / "run", recipe=recipe, rounds=6)
        world.finish(study)
        page = ada.get("/compare").text
        ids.append(page.split('name="run" value="')[1].split('"')[0])
    with world.app.state.sessions() as db:  # at real sites: private, without metrics
        run = db.get(Run, int(ids[0]))
        run.summary = {**run.summary, "value": None, "epsilon": None, "private": True}
        db.commit()
    assert "only sites know it" in ada.get("/compare").text
    both = ada.get("/compare", params={"run": ids})
    assert "Side by side" in both.text
    assert "compare fedprox" in both.text
    assert "Communication, utility, privacy" in both.text
    assert "further left is cheaper" in both.text
    assert world.known("ben").get("/compare", params={"run": ids}).status_code == 404
    assert ada.get("/compare", params={"run": [10**9]}).status_code == 404
    assert ada.get("/compare", params={"run": list(range(1, 20))}).status_code == 422
    assert ada.get("/compare", params={"run": "x"}).status_code == 422


def test_a_lock_tells_whether_a_child_lives(tmp_path):
    launcher = ChildProcess()
    assert not launcher.alive(tmp_path)
    with (tmp_path / "worker.lock").open("a+") as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        assert launcher.alive(tmp_path)
    assert not launcher.alive(tmp_path)
