"""Passwords, sessions, and log-ins that are held back."""

from __future__ import annotations

import pytest
from web_world import PASSWORD

from cupola.web import accounts
from cupola.web.models import Account, Attempt, Event, Login, Study
from cupola.web.security_middleware import COOKIE


def test_a_session_is_new_after_log_in_and_ends_at_log_out(world):
    browser = world.visitor()
    before = browser.cookies[COOKIE]
    world.post(browser, "/login", name="ada", password=PASSWORD)
    after = browser.cookies[COOKIE]
    assert after != before
    planted = world.visitor()
    planted.cookies.set(COOKIE, before)  # somebody else gave this cookie to the browser
    assert planted.get("/").status_code == 303
    world.post(browser, "/logout")
    assert browser.cookies[COOKIE] != after
    thief = world.visitor()
    thief.cookies.set(COOKIE, after)
    assert thief.get("/").status_code == 303


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(world):
    browser = world.visitor()
    made = world.post(browser, "/login", name="ada", password=PASSWORD).headers["set-cookie"]
    assert "HttpOnly" in made
    assert "SameSite=Lax" in made


def test_the_database_keeps_neither_passwords_nor_cookies(world):
    browser = world.visitor("ada")
    with world.app.state.sessions() as db:
        kept = [a.password for a in db.query(Account)] + [s.token for s in db.query(Login)]
    assert all(password.startswith("$argon2id$") for password in kept if "$" in password)
    assert PASSWORD not in str(kept)
    assert browser.cookies[COOKIE] not in str(kept)


def test_log_ins_that_fail_are_held_back(world):
    with world.app.state.sessions() as db:
        accounts.create(db, world.settings, "eve", PASSWORD, "participant")
        db.commit()
    browser = world.visitor()
    for _ in range(world.settings.tries):
        assert world.post(browser, "/login", name="eve", password="wrong").status_code == 401
    held = world.post(browser, "/login", name="Eve", password=PASSWORD)
    assert held.status_code == 429
    assert int(held.headers["retry-after"]) <= world.settings.wait
    assert world.post(browser, "/login", name="ben", password=PASSWORD).status_code == 303


def test_log_ins_at_the_same_time_are_all_counted(world, monkeypatch):
    """Many wrong passwords at once are no way around the count: each is counted before it is
    judged."""
    counted = []
    judge = accounts._fits

    def judged(settings, known, password):
        with world.app.state.sessions() as db:
            counted.append(db.query(Attempt).filter_by(name="ben").count())
        return judge(settings, known, password)

    monkeypatch.setattr(accounts, "_fits", judged)
    browser = world.visitor()
    for _ in range(world.settings.tries + 3):
        world.post(browser, "/login", name="ben", password="wrong")
    assert counted == [1, 2, 3, 4, 5]
    with world.app.state.sessions() as db:
        held = db.query(Event).filter_by(action="log-in held back", who="ben").count()
    assert held <= 1  # a line, not one for every try


def test_strangers_with_wrong_tokens_keep_nobody_else_from_joining(world):
    with world.app.state.sessions() as db:
        for i in range(60):
            accounts.attempt(db, accounts.TOKEN, f"10.0.0.{i}")
            accounts.attempt(db, "token", f"10.0.0.{i}")
    token = world.invite(world.known("ada"), world.study("ada"), "north")["north"]
    assert world.visitor().post("/api/join", json={"token": token}).status_code == 200


def test_a_present_password_is_not_guessed_in_a_session(world):
    with world.app.state.sessions() as db:
        accounts.create(db, world.settings, "kim", PASSWORD, "participant")
        db.commit()
    kim = world.visitor("kim")
    for _ in range(world.settings.tries):
        assert world.post(kim, "/account", old="wrong", new="another horse").status_code == 422
    assert "too many" in world.post(kim, "/account", old=PASSWORD, new="another horse").text


def test_a_new_password_ends_other_sessions(world):
    with world.app.state.sessions() as db:
        accounts.create(db, world.settings, "fay", PASSWORD, "participant")
        db.commit()
    here, there = world.visitor("fay"), world.visitor("fay")
    assert world.post(here, "/account", old="wrong", new="another horse").status_code == 422
    assert world.post(here, "/account", old=PASSWORD, new="short").status_code == 422
    assert world.post(here, "/account", old=PASSWORD, new="another horse").status_code == 200
    assert here.get("/").status_code == 200
    assert there.get("/").status_code == 303


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example", "/\\evil", "\\\\e", "/a\nb"]
)
def test_log_in_never_leads_away(world, back):
    answer = world.post(world.visitor(), "/login", name="ada", password=PASSWORD, back=back)
    assert answer.headers["location"] == "/"


def test_a_coordinator_makes_accounts_whose_password_is_shown_to_them_alone(world):
    ada = world.visitor("ada")
    answer = world.shown(ada, "/accounts", name="gus", role="participant")
    password = answer.text.split("<pre>")[1].split("<")[0]
    assert password in ada.get(answer.url).text  # loaded again
    assert password not in world.visitor("ada").get(answer.url).text
    assert password not in ada.get("/accounts").text
    new = world.visitor()
    assert world.post(new, "/login", name="gus", password=password).status_code == 303
    for name, role in (
        ("gus", "participant"),
        ("GUS", "participant"),
        ("x y", "participant"),
        ("hal", "king"),
    ):
        assert world.post(ada, "/accounts", name=name, role=role).status_code == 422


@pytest.mark.parametrize(
    "name", ["' OR 1=1 --", 'ada" --', "ada'; DROP TABLE account; --", "%", "ada\\"]
)
def test_names_are_values_and_not_sql(world, name):
    answer = world.post(world.visitor(), "/login", name=name, password="' OR '1'='1")
    assert answer.status_code == 401
    with world.app.state.sessions() as db:
        assert db.query(Account).count() >= 4


def test_an_account_is_deleted_unless_something_hangs_on_it(world):
    ada = world.visitor("ada")
    for name, role in (("ida", "coordinator"), ("jon", "participant")):
        world.post(ada, "/accounts", name=name, role=role)
    with world.app.state.sessions() as db:
        numbers = {a.name: a.id for a in db.query(Account)}
    study = world.study("ida")
    where = "/accounts/{}/delete".format
    assert world.post(world.known("ben"), where(numbers["jon"])).status_code == 403
    assert world.post(ada, where(numbers["ida"])).status_code == 409  # has a study
    assert world.post(ada, where(numbers["ada"])).status_code == 409  # the first of all
    assert world.post(ada, where(10**9)).status_code == 404
    assert world.post(ada, where(numbers["jon"])).status_code == 303
    assert "jon" not in [a.name for a in accounts_of(world)]
    assert "account deleted" in ada.get("/audit").text
    with world.app.state.sessions() as db:
        db.delete(db.get(Study, study))
        db.commit()
    assert world.post(ada, where(numbers["ida"])).status_code == 303


def accounts_of(world):
    with world.app.state.sessions() as db:
        return db.query(Account).all()
