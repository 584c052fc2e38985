"""What strangers, thieves and other coordinators try on the web application."""

from __future__ import annotations

import gzip
import io
import time
import zipfile

import pytest
from fastapi.testclient import TestClient
from web_world import PASSWORD

from cupola.web import accounts, invitations
from cupola.web.accounts import RateLimited, Refused, network
from cupola.web.models import Event, Invitation, Run
from cupola.web.security_middleware import COOKIE, MARK

# Passwords


def failed(world, name, address, mark=None, password="wrong password"):
    with world.app.state.sessions() as db:
        return accounts.log_in(db, world.settings, name, password, address, mark)


def test_wrong_passwords_from_changing_addresses_do_not_lock_the_owner_out(world):
    for i in range(200):
        with pytest.raises(Refused, match="wrong"):
            failed(world, "ada", f"10.1.{i // 250}.{i % 250}")
    owner = world.visitor()  # from an address of her own, in a browser that nobody knows
    assert world.post(owner, "/login", name="ada", password=PASSWORD).status_code == 303


def test_a_known_browser_stays_welcome_whatever_others_try_from_its_address(world):
    owner = world.visitor("ada")
    world.post(owner, "/logout")
    stranger = world.visitor()  # behind the same address
    for _ in range(world.settings.tries):
        assert world.post(stranger, "/login", name="ada", password="wrong").status_code == 401
    assert world.post(stranger, "/login", name="ada", password=PASSWORD).status_code == 429
    assert world.post(owner, "/login", name="ada", password=PASSWORD).status_code == 303


def test_a_known_browser_is_no_place_to_guess_either(world):
    with world.app.state.sessions() as db:
        accounts.create(db, world.settings, "lea", PASSWORD, "participant")
        db.commit()
    _, mark = failed(world, "lea", "10.2.0.1", password=PASSWORD)
    for i in range(world.settings.tries):
        with pytest.raises(Refused, match="wrong"):
            failed(world, "lea", f"10.2.1.{i}", mark)  # its address does not matter
    with pytest.raises(RateLimited):
        failed(world, "lea", "10.2.0.1", mark)


def test_a_mark_is_of_one_account_and_not_made_by_others(world):
    _, mark = failed(world, "ben", "10.3.0.1", password=PASSWORD)
    text, _, tag = mark.rpartition(".")
    number = text.split("-")[0]
    forged = (mark[:-1] + "0", f"{int(number) + 1}{text[len(number) :]}.{tag}", text, "1-x", "")
    for i, one in enumerate((mark, *forged)):  # ben's own mark is none for ada
        for _ in range(world.settings.tries):
            with pytest.raises(Refused, match="wrong"):
                failed(world, "ada", f"10.3.1.{i}", one)
        with pytest.raises(RateLimited):
            failed(world, "ada", f"10.3.1.{i}", one)


def test_an_address_that_one_visitor_changes_at_will_is_one():
    assert network("2001:db8:1:2:3:4:5:6") == network("2001:db8:1:2:ffff::1")
    assert network("2001:db8:1:2::1") != network("2001:db8:1:3::1")
    assert network("::ffff:10.0.0.1") == network("10.0.0.1") == "10.0.0.1"
    assert network("fe80::1%eth0") == network("fe80::2")
    assert network("testclient") == "testclient"


def test_one_address_does_not_try_many_names(world):
    for i in range(10 * world.settings.tries):
        with pytest.raises(Refused, match="wrong"):
            failed(world, f"name{i}", "10.4.0.1")
    with pytest.raises(RateLimited):
        failed(world, "another", "10.4.0.1")


def test_strangers_do_not_fill_the_audit(world, monkeypatch):
    monkeypatch.setattr("cupola.web.routes.account.LISTED", 3)
    with world.app.state.sessions() as db:
        db.query(Event).filter_by(action="log-in failed").delete()
        db.commit()
    browser = world.visitor()
    for i in range(5):
        world.post(browser, "/login", name=f"x{i}", password="wrong")
    with world.app.state.sessions() as db:
        assert db.query(Event).filter_by(action="log-in failed").count() == 3


def test_a_password_is_reset_from_the_machine(world):
    with world.app.state.sessions() as db:
        accounts.create(db, world.settings, "mia", PASSWORD, "participant")
        db.commit()
    mia, address = world.visitor("mia"), "testclient"
    with world.app.state.sessions() as db:
        for _ in range(world.settings.tries):
            accounts.attempt(db, "mia", address)
        password = accounts.reset_password(db, world.settings, "Mia")
        db.commit()
        with pytest.raises(Refused, match="there are: ada"):
            accounts.reset_password(db, world.settings, "nobody")
    assert mia.get("/").status_code == 303  # its sessions have ended
    again = world.visitor()
    assert world.post(again, "/login", name="mia", password=PASSWORD).status_code == 401
    assert world.post(again, "/login", name="mia", password=password).status_code == 303
    assert "password reset" in world.known("ada").get("/audit").text


# Keys and tokens


@pytest.fixture
def site(world):
    """(key of a site program that has joined ada's study, the study)"""
    study = world.study("ada")
    token = world.invite(world.known("ada"), study, "north", "south")["north"]
    return bearer(stranger(world), token), study, token


def bearer(browser, token):
    """Exchange a token for a key."""
    joined = browser.post("/api/join", json={"token": token}).json()
    return {"Authorization": f"Bearer {joined['key']}"}


def stranger(world):
    return TestClient(world.app, follow_redirects=False)


def test_a_stolen_key_opens_its_own_site_and_nothing_else(world, site, places):
    key, study, _ = site
    thief = stranger(world)
    assert thief.get("/api/site", headers=key).json()["study"]["id"] == study
    for url in ("/", f"/studies/{study}", "/accounts", "/audit", f"/studies/{places['study_id']}"):
        assert thief.get(url, headers=key).status_code == 303
    assert thief.get("/api/studies", headers=key).status_code == 401
    assert thief.get(f"/api/studies/{study}", headers=key).status_code == 401
    other = places["study_id"]
    for name in ("result.json", f"../../{other}/1/run/ledger.jsonl", "ledger.jsonl"):
        assert thief.get(f"/api/site/files/{name}", headers=key).status_code in (401, 404)
    asked = thief.get("/api/site", headers=key).json()
    assert asked["study"]["sites"] == {"north": "asked"}  # nor who else was asked
    thief.cookies.set(COOKIE, key["Authorization"].removeprefix("Bearer "))
    assert thief.get("/").status_code == 303


def test_a_session_or_a_token_is_no_key(world, site):
    _, _, token = site
    session = world.known("ada").cookies[COOKIE]
    mark = world.visitor("ada").cookies[MARK]
    for given in (f"Bearer {session}", f"Bearer {mark}", f"Bearer {token}", "Bearer", "Bearer  ",
                  "Basic YWRhOng=", "Bearer " + "x" * 5000, "Bearer é"):  # fmt: skip
        held = {"Authorization": given.encode("latin-1")}
        assert stranger(world).get("/api/site", headers=held).status_code == 401, given[:30]


def test_keys_end_with_the_sites_part_in_the_study(world, site):
    key, _, _ = site
    thief = stranger(world)
    assert thief.post("/api/site/decline", headers=key).status_code == 204
    for url in ("/api/site", "/api/site/progress"):
        assert thief.get(url, headers=key).status_code == 401
    assert thief.post("/api/site/accept", json={}, headers=key).status_code == 401
    other = world.study("ada")
    token = world.invite(world.known("ada"), other, "north")["north"]
    key = {
        "Authorization": "Bearer " + thief.post("/api/join", json={"token": token}).json()["key"]
    }
    assert world.post(world.known("ada"), f"/studies/{other}/delete").status_code == 303
    assert thief.get("/api/site", headers=key).status_code == 401


def test_keys_end_some_time_after_the_study(world):
    study = world.study("ada")
    token = world.invite(world.known("ada"), study, "north")["north"]
    site = stranger(world)
    key = bearer(site, token)
    assert site.post("/api/site/accept", json={}, headers=key).status_code == 200
    world.finish(study)
    assert site.get("/api/site/progress", headers=key).json()["status"] == "finished"
    with world.app.state.sessions() as db:
        run = db.query(Run).filter_by(study_id=study).one()
        run.ended = time.time() - invitations.KEY_LASTS - 1
        db.commit()
    assert site.get("/api/site/progress", headers=key).status_code == 401
    assert site.get("/api/site/files/result.json", headers=key).status_code == 401


def test_tokens_that_are_old_or_were_replaced_are_worth_nothing(world):
    ada, study = world.known("ada"), world.study("ada")
    token = world.invite(ada, study, "north")["north"]
    with world.app.state.sessions() as db:
        held = db.query(Invitation).filter_by(study_id=study).one()
        held.changed = time.time() - invitations.TOKEN_LASTS - 1
        number = held.id
        db.commit()
    assert stranger(world).post("/api/join", json={"token": token}).status_code == 404
    assert world.post(world.known("cleo"), "/join", token=token).status_code == 422
    page = world.shown(ada, f"/studies/{study}/renew/{number}")
    new = page.text.split("<pre>")[1].split("<")[0]
    assert stranger(world).post("/api/join", json={"token": token}).status_code == 404
    assert stranger(world).post("/api/join", json={"token": new}).status_code == 200


# Two coordinators


def test_a_coordinator_reaches_nothing_of_another_ones_study(world):
    ada, ben = world.known("ada"), world.known("ben")
    hers, his = world.study("ada"), world.study("ben")
    page = world.shown(ada, f"/studies/{hers}/invite", sites="north")
    token = page.text.split("<pre>")[1].split("<")[0]
    with world.app.state.sessions() as db:
        number = db.query(Invitation).filter_by(study_id=hers).one().id
    world.invite(ben, his, "south")
    for study in (hers, his):  # by her study, or by her site under his own
        assert world.post(ben, f"/studies/{study}/renew/{number}").status_code == 404
    assert ben.get(f"/join/{number}").status_code == 404
    key = str(page.url).rsplit("/", 1)[1]
    for study in (hers, his):  # nor the page of her tokens
        assert token not in ben.get(f"/studies/{study}/tokens/{key}", follow_redirects=True).text
    other = world.visitor("ada")  # another session of her own, which might be a thief's
    assert token not in other.get(f"/studies/{hers}/tokens/{key}", follow_redirects=True).text
    assert token in ada.get(f"/studies/{hers}/tokens/{key}").text
    for action in ("start", "stop", "resume", "repeat", "delete", "edit", "play", "invite"):
        assert world.post(ben, f"/studies/{hers}/{action}", sites="x").status_code == 404
    assert stranger(world).post("/api/join", json={"token": token}).status_code == 200


# Uploads


def archive():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("plan.toml", bytes(30_000_000))
    return made.getvalue()


@pytest.mark.parametrize(
    ("body", "statuses"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(range(1, 200)), (422,)),
        (archive(), (400, 422)),
        (gzip.compress(b'name = "x"\n' * 100_000), (400, 422)),
        (b"\xff\xfe" + 'name = "x"'.encode("utf-16-le"), (400, 422)),
        (b"a = " + b"[" * 100_000, (422,)),
        (b"a." * 40_000 + b"b = 1", (422,)),
        (b"".join(b"k%d = 1\n" % i for i in range(20_000)), (422,)),
        (b"x = " + b"9" * 100_000, (422,)),
        (b"rounds = 1\n" * 10_000, (422,)),
        (b'[data]\npath = "/etc/passwd"\n', (422,)),
        (b'[data]\nname = "../../secret"\n', (422,)),
        (b'task = "os:system"\n', (422,)),
        (b"", (422,)),
    ],
    ids=["image", "zip", "gzip", "utf-16", "deep", "dots", "keys", "number", "twice", "file",
         "up", "code", "nothing"],
)  # fmt: skip
def test_what_is_no_plan_is_refused_soon(world, body, statuses):
    began = time.process_time()
    answer = world.post(world.known("ada"), "/studies/upload", files={"file": ("plan.toml", body)})
    assert answer.status_code in statuses, answer.text[:300]
    assert time.process_time() - began < 10  # seconds of a processor, whatever else it does


def test_a_files_name_is_not_looked_at(world):
    for name in ("../../../etc/cron.d/x", "/etc/passwd", "..\\x", "a\r\nX: y", "x" * 500):
        plan = b'name = "by its text"\ntest = "linear"\n'
        files = {"file": (name, plan)}
        assert world.post(world.known("ada"), "/studies/upload", files=files).status_code == 303
    assert not list(world.settings.folder.parent.rglob("cron.d"))


def test_large_requests_end_early(world):
    ada, most = world.known("ada"), world.settings.upload
    sent = []

    def drip():
        for _ in range(1000):
            sent.append(1)
            yield b"x" * 10_000

    assert ada.post("/studies/upload", content=drip()).status_code == 413
    body = {"csrf": world.token(ada), "text": "x" * most}
    assert ada.post("/studies/upload", data=body).status_code == 413
    wrong = {"content-length": "-1"}
    assert ada.post("/login", content=b"", headers=wrong).status_code == 413
    packed = gzip.compress(bytes(10_000_000))
    held = {"content-encoding": "gzip", "content-type": "application/json"}
    answer = ada.post("/api/join", content=packed, headers=held)
    assert answer.status_code in (400, 422)  # it is not unpacked


def test_forms_of_many_parts_are_refused(world):
    ada = world.known("ada")
    files = [("file", (f"{i}.toml", b"x")) for i in range(50)]
    answer = ada.post("/studies/upload", data={"csrf": world.token(ada)}, files=files)
    assert answer.status_code == 400
    many = {f"f{i}": "1" for i in range(500)} | {"csrf": world.token(ada)}
    assert ada.post("/studies/new", data=many).status_code == 400


@pytest.mark.parametrize(
    "name",
    ["../job.json", "..%2Fjob.json", "%2e%2e/job.json", "....//job.json", "/etc/passwd",
     "result.json/../../job.json", "run/result.json", "ledger.jsonl%00.html", "checkpoint", "",
     "..\\job.json", "study.toml", ".lock"],
)  # fmt: skip
def test_no_name_leads_out_of_the_list_of_files(world, places, name):
    ada, study = world.known("ada"), places["study_id"]
    (world.settings.run_folder(study, 1) / "job.json").write_text('{"secret": 1}')
    answer = ada.get(f"/studies/{study}/runs/1/files/{name}")
    assert answer.status_code in (303, 307, 400, 404, 405)
    assert "secret" not in answer.text
