"""Tokens, answers, and when a study starts."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from cupola.web.accounts import new_token
from cupola.web.models import Study

KEY = "Authorization"


def test_a_token_works_once_and_is_kept_as_a_hash(world):
    ada, study = world.known("ada"), world.study("ada")
    token = world.invite(ada, study, "north", "south")["north"]
    assert token not in ada.get(f"/studies/{study}").text
    with world.app.state.sessions() as db:
        assert token not in str(db.execute(text("SELECT * FROM invitation")).all())
    world.join(world.known("cleo"), token)
    for who in ("dora", "cleo", None):
        again = world.post(world.known(who), "/join", token=token, name="new", password="x" * 12)
        assert again.status_code == 422
    assert world.visitor().post("/api/join", json={"token": token}).status_code == 404


def test_tokens_can_be_given_to_a_command(monkeypatch):
    made = iter(["-x", "_y", "z" * 43])
    monkeypatch.setattr("secrets.token_urlsafe", lambda _: next(made))
    assert new_token() == "z" * 43


def test_a_new_token_ends_the_old_one(world):
    ada, study = world.known("ada"), world.study("ada")
    old = world.invite(ada, study, "north")["north"]
    page = ada.get(f"/studies/{study}").text
    number = page.split(f"/studies/{study}/renew/")[1].split('"')[0]
    new = world.shown(ada, f"/studies/{study}/renew/{number}").text
    new = new.split("<h2>Tokens")[1].split("<pre>")[1].split("<")[0]
    assert world.post(world.known("cleo"), "/join", token=old).status_code == 422
    world.join(world.known("cleo"), new)


def test_guessing_tokens_is_held_back(world):
    browser = world.visitor()
    statuses = [browser.post("/api/join", json={"token": f"t{i}"}).status_code for i in range(7)]
    assert statuses == [404] * 5 + [429] * 2


def test_somebody_without_an_account_makes_one_with_the_token(world):
    ada, study, new = world.known("ada"), world.study("ada"), world.visitor()
    token = world.invite(ada, study, "north", "south")["north"]
    assert world.post(new, "/join", token=token, name="ada", password="x" * 12).status_code == 422
    assert world.post(new, "/join", token=token, name="ines", password="x").status_code == 422
    answer = world.post(new, "/join", token=token, name="ines", password="x" * 12)
    assert answer.status_code == 303
    asked = new.get(answer.headers["location"])
    assert "What your site will reveal" in asked.text
    assert new.get("/accounts").status_code == 403
    assert new.get(f"/studies/{study}").status_code == 404  # it has not accepted yet


def test_a_study_starts_when_all_have_joined(world):
    ada, study = world.known("ada"), world.study("ada", "association")
    tokens = world.invite(ada, study, "north", "south", "west")
    for name, who in zip(tokens, ("cleo", "dora")):
        world.join(world.known(who), tokens[name], f"{name}/chip")
    assert world.post(ada, f"/studies/{study}/start").status_code == 409
    world.join(world.known("cleo"), tokens["west"], "west/chip")
    world.sweep()
    job, folder = world.launcher.jobs[-1]
    assert folder == world.settings.run_folder(study, 1)
    assert [c["name"] for c in job.plan["cohorts"]] == ["north", "south", "west"]
    assert job.plan["cohorts"][0]["bfile"] == "north/chip"
    world.launcher.end(folder, "failed", "made up")
    world.sweep()


def test_a_study_may_start_with_the_minimum_and_ends_the_other_tokens(world):
    ada, study = world.known("ada"), world.study("ada")
    tokens = world.invite(ada, study, "a", "b", "c", "d", minimum="3")
    for name in "ab":
        world.join(world.known("cleo"), tokens[name])
    assert world.post(ada, f"/studies/{study}/start").status_code == 409
    world.join(world.known("dora"), tokens["c"])
    assert world.post(ada, f"/studies/{study}/start").status_code == 303
    world.sweep()
    job, folder = world.launcher.jobs[-1]
    assert job.plan["data"]["partition"]["sites"] == 3
    assert world.post(world.known("ben"), "/join", token=tokens["d"]).status_code == 422
    world.launcher.end(folder, "failed", "made up")
    world.sweep()


def test_sites_choose_only_what_is_offered_and_only_once(world):
    ada, study = world.known("ada"), world.study("ada", "association")
    tokens = world.invite(ada, study, "one", "two", "three")
    cleo = world.known("cleo")
    where = world.post(cleo, "/join", token=tokens["one"]).headers["location"]
    for data in ("", "../../etc/passwd", "/etc/passwd", "north", "east/chip"):
        assert world.post(cleo, f"{where}/accept", data=data).status_code == 409
    assert world.post(cleo, f"{where}/accept", data="north/chip").status_code == 303
    where = world.post(cleo, "/join", token=tokens["two"]).headers["location"]
    assert world.post(cleo, f"{where}/accept", data="north/chip").status_code == 409
    assert world.post(cleo, f"{where}/decline").status_code == 303
    assert world.post(cleo, f"{where}/accept", data="south/chip").status_code == 409


def test_who_leaves_stops_the_study_and_it_does_not_go_on_without(world):
    ada, study = world.known("ada"), world.study("ada")
    tokens = world.invite(ada, study, "a", "b", "c")
    places = {n: world.join(world.known("cleo"), tokens[n]) for n in tokens}
    world.sweep()
    folder = world.settings.run_folder(study, 1)
    assert world.launcher.alive(folder)
    cleo = world.known("cleo")
    assert world.post(cleo, f"{places['b']}/leave").status_code == 303
    assert world.launcher.stopped[-1] == folder
    world.launcher.end(folder, "stopped", "interrupted after round 2")
    world.sweep()
    answer = world.post(ada, f"/studies/{study}/resume")
    assert answer.status_code == 409
    assert "difference" in answer.text
    assert world.post(ada, f"/studies/{study}/repeat").status_code == 303


def test_a_site_program_joins_reads_accepts_and_fetches(world):
    ada, study, site = world.known("ada"), world.study("ada", "association"), world.visitor()
    token = world.invite(ada, study, "north")["north"]
    joined = site.post("/api/join", json={"token": token}).json()
    key = {KEY: f"Bearer {joined['key']}"}
    assert joined["asked"]["data_sets"] == ["north/chip", "south/chip", "west/chip"]
    assert [q["task"] for q in joined["asked"]["questions"]] == ["train"]  # as it was rehearsed
    wrong = site.post("/api/site/accept", json={"data": "nothing"}, headers=key)
    assert wrong.status_code == 409
    done = site.post("/api/site/accept", json={"data": "south/chip"}, headers=key)
    assert done.json()["status"] == "queued"
    world.finish(study, files=[])
    progress = site.get("/api/site/progress", headers=key).json()
    assert progress["status"] == "finished"
    assert "result.json" in progress["files"]
    assert site.get("/api/site/files/result.json", headers=key).status_code == 200
    assert site.get("/api/site/files/study.toml", headers=key).status_code == 404
    assert site.post("/api/site/leave", headers=key).status_code == 204
    assert site.get("/api/site/progress", headers=key).status_code == 401


@pytest.mark.parametrize("name", ["", "<b>", "a/b", "..", "x" * 70, "a' OR 1=1"])
def test_sites_have_plain_names(world, name):
    ada, study = world.known("ada"), world.study("ada")
    assert world.post(ada, f"/studies/{study}/invite", sites=name).status_code == 409


def test_of_two_who_accept_together_the_second_to_look_sees_both(world):
    """The first has looked at everybody's answer before the second one's was there."""
    ada, study = world.known("ada"), world.study("ada")
    world.invite(ada, study, "one", "two")
    sessions = world.app.state.sessions
    with sessions() as db, sessions() as other:
        mine, theirs = db.get(Study, study), other.get(Study, study)
        for held in (mine, theirs):
            assert [i.status for i in held.invitations] == ["open", "open"]
        theirs.invitations[1].status = "joined"
        world.service(other).start_if_complete(theirs)
        assert theirs.status == "inviting"
        mine.invitations[0].status = "joined"
        world.service(db).start_if_complete(mine)
        assert mine.status == "queued"
