"""Many at once: everybody is answered or told to come again, and who works here goes first."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest
from web_world import PASSWORD, World

from cupola.web.app import make_app
from cupola.web.backpressure import Gate, Lane
from cupola.web.security_middleware import COOKIE, form_token
from cupola.web.settings import Settings
from cupola.web.signed_tokens import BROWSER, KEY, SESSION, sign, signed


def run(what):
    async def soon():
        async with asyncio.timeout(30):  # never reached, but by a server that hangs
            return await what

    return asyncio.run(soon())


def browser(app, **cookies):
    return httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://testserver", cookies=cookies
    )


async def together(app, count, *, url="/login", **cookies):
    """Requests by browsers of their own, at the same time."""

    async def one():
        async with browser(app, **cookies) as client:
            return await client.get(url)

    return await asyncio.gather(*(one() for _ in range(count)))


def test_a_crowd_of_strangers_is_answered(world):
    """With a session held for each, threads and connections wait for each other for ever."""
    answers = run(together(world.app, 120))
    assert {answer.status_code for answer in answers} <= {200, 503}
    assert sum(answer.status_code == 200 for answer in answers) >= 6
    assert all("retry-after" in a.headers for a in answers if a.status_code == 503)


def test_pages_of_many_who_are_logged_in_are_all_answered(world):
    cookie = world.known("ada").cookies[COOKIE]
    answers = run(together(world.app, 60, url="/", **{COOKIE: cookie}))
    assert {answer.status_code for answer in answers} == {200}


def test_no_connection_is_held_while_an_answer_is_sent(world):
    """A slow reader, or a live page, keeps nobody from the database."""
    held = []

    async def look(scope, receive, send):
        async def sent(message):
            held.append(world.app.state.sessions.kw["bind"].pool.checkedout())
            await send(message)

        await world.app(scope, receive, sent)

    cookie = world.known("ada").cookies[COOKIE]
    before = world.app.state.sessions.kw["bind"].pool.checkedout()
    (answer,) = run(together(look, 1, url="/", **{COOKIE: cookie}))
    assert answer.status_code == 200
    assert set(held) == {before}


def test_who_hashes_holds_no_connection(world, monkeypatch):
    pool, seen = world.app.state.sessions.kw["bind"].pool, []
    visitor, before = world.visitor(), pool.checkedout()
    monkeypatch.setattr(
        "cupola.web.accounts._fits", lambda *_: bool(seen.append(pool.checkedout()))
    )
    world.post(visitor, "/login", name="ada", password="wrong")
    assert seen == [before]


async def entered(lane, *known):
    """In which order these are let in, each leaving at once, after the first one leaves."""
    order = []
    assert await lane.enter(False)

    async def one(number, is_known):
        if await lane.enter(is_known):
            order.append(number)
            lane.leave()

    tasks = [asyncio.create_task(one(i, k)) for i, k in enumerate(known)]
    await asyncio.sleep(0)
    lane.leave()
    await asyncio.gather(*tasks)
    return order


def test_known_visitors_go_first():
    assert run(entered(Lane(1), False, True, False, True)) == [1, 3, 0, 2]


def test_strangers_leave_places_for_known_visitors():
    async def tried():
        lane = Lane(3, reserved=1, patience=0.01)
        assert [await lane.enter(False) for _ in range(3)] == [True, True, False]
        assert await lane.enter(True)

    run(tried())


def test_a_line_has_an_end_and_nobody_waits_for_ever():
    async def tried():
        lane = Lane(1, longest=1, patience=0.05)
        assert await lane.enter(True)
        waiting = asyncio.create_task(lane.enter(True))
        await asyncio.sleep(0)
        assert not await lane.enter(True)  # the line is full
        assert not await waiting  # its time is over
        lane.leave()
        assert lane.free == 1

    run(tried())


def test_a_place_is_not_lost_with_who_gave_up():
    async def tried():
        lane = Lane(1)
        assert await lane.enter(True)
        waiting = asyncio.create_task(lane.enter(True))
        await asyncio.sleep(0)
        lane.leave()  # its turn comes, and at the same moment
        waiting.cancel()  # the connection goes
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert lane.free == 1

    run(tried())


def test_log_ins_wait_for_log_ins_and_pages_do_not(world):
    """All places for passwords are taken: pages are served, another log-in is told to come again
    and is not judged."""
    app = make_app(world.settings, world.launcher)
    gate = Gate(app, world.settings)
    gate.passwords = Lane(0, patience=0.01)

    async def tried():
        async with browser(gate) as client:
            assert (await client.get("/static/icon.svg")).status_code == 200
            answer = await client.post("/login", data={"name": "ada", "password": PASSWORD})
            assert answer.status_code == 503
            assert 2 <= int(answer.headers["retry-after"]) <= 5
            assert "Nothing was done" in answer.text
            assert "refresh" not in answer.text  # a form is not sent again by itself

    run(tried())
    app.state.sessions.kw["bind"].dispose()


def test_programs_are_told_so_in_json(world):
    gate = Gate(world.app, world.settings)
    gate.pages = Lane(0, patience=0.01)
    (answer,) = run(together(gate, 1, url="/api/site"))
    assert answer.status_code == 503
    assert "nothing was done" in answer.json()["detail"]
    (answer,) = run(together(gate, 1))
    assert "tries again" in answer.text


def test_a_stream_holds_no_place(world):
    async def endless(scope, receive, send):
        del scope, receive
        await send({"type": "http.response.start", "status": 200, "headers": []})
        inside.append(gate.pages.free)
        await send({"type": "http.response.body", "body": b""})

    inside = []
    gate = Gate(endless, world.settings)
    whole = gate.pages.free
    run(together(gate, 1))
    assert inside == [whole]
    assert gate.pages.free == whole


def test_who_sends_slowly_takes_no_place_and_is_cut_off(world, monkeypatch):
    monkeypatch.setattr("cupola.web.security_middleware.READING", 0.05)
    sent = []

    async def tried():
        scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"",
                 "headers": [(b"content-length", b"100")]}  # fmt: skip

        async def never():
            await asyncio.sleep(60)

        async def send(message):
            sent.append(message)

        await world.app(scope, never, send)

    run(tried())
    assert sent[0]["status"] == 408


def test_a_database_that_does_not_answer_is_said_so(world, monkeypatch):
    from sqlalchemy.exc import OperationalError

    def locked(*_):
        raise OperationalError("select", {}, Exception("database is locked"))

    monkeypatch.setattr("cupola.web.accounts.who", locked)
    answer = world.known("ada").get("/")
    assert answer.status_code == 503
    assert "retry-after" in answer.headers
    assert "locked" not in answer.text


def test_what_the_server_issued_is_told_from_what_it_did_not(tmp_path):
    here, there = Settings(tmp_path / "a"), Settings(tmp_path / "b")
    made = sign(here, KEY, "abc")
    assert signed(here, KEY, made) == "abc"
    wrong = (None, "", "abc", ".", made + "0", "x" + made, made[:-1], "é.é")
    assert [signed(here, KEY, one) for one in wrong] == [None] * len(wrong)
    assert signed(here, SESSION, made) is None
    assert signed(there, KEY, made) is None


def test_who_is_known_at_the_gate(world):
    gate = Gate(world.app, world.settings)

    def known(*headers):
        return gate._known({"headers": list(headers)})

    session = world.known("ada").cookies[COOKIE]
    mark = sign(world.settings, BROWSER, "1-abcdefghijklmnopqrst")
    key = sign(world.settings, KEY, "abcdefghijklmnopqrst")
    assert known((b"cookie", f"{COOKIE}={session}".encode()))
    assert known((b"cookie", f"a=b; cupola_browser={mark}".encode()))
    assert known((b"authorization", f"Bearer {key}".encode()))
    assert not known((b"cookie", f"{COOKIE}={world.visitor().cookies[COOKIE]}".encode()))
    assert not known((b"authorization", f"Bearer {session}".encode()))
    assert not known()


def test_over_tls_cookies_are_this_hosts_own_and_browsers_stay_with_tls(tmp_path):
    world = World(tmp_path)
    settings = Settings(**{**vars(world.settings), "secure": True})
    app = make_app(settings, world.launcher)

    async def tried():
        async with browser(app) as client:
            page = await client.get("/login")
            cookie = page.headers["set-cookie"].split("=")[1].split(";")[0]
            assert page.headers["set-cookie"].startswith("__Host-cupola_session=")
            assert "Secure" in page.headers["set-cookie"]
            assert "Domain" not in page.headers["set-cookie"]
            assert page.headers["strict-transport-security"].startswith("max-age=31536000")
            held = {"Cookie": f"__Host-cupola_session={cookie}"}
            form = {"csrf": form_token(settings, cookie), "name": "ada", "password": PASSWORD}
            entered = await client.post("/login", data=form, headers=held)
            assert entered.status_code == 303
            made = entered.headers.get_list("set-cookie")
            assert [one.split("=")[0] for one in made] == [
                "__Host-cupola_session", "__Host-cupola_browser",
            ]  # fmt: skip
            planted = {"Cookie": made[0].split(";")[0].removeprefix("__Host-")}
            assert (await client.get("/", headers=planted)).status_code == 303

    run(tried())
    assert "strict-transport-security" not in world.visitor().get("/login").headers
    for one in (app, world.app):
        one.state.sessions.kw["bind"].dispose()


def test_what_the_server_keeps_is_for_its_user_alone(tmp_path):
    folder = tmp_path / "web"
    folder.mkdir(mode=0o755)
    (folder / "cupola.sqlite").touch(mode=0o644)  # as servers before this one left it
    world = World(folder)
    world.visitor("ada")
    found = {p.name: p.stat().st_mode & 0o777 for p in [folder, *Path(folder).glob("*")]}
    assert found.pop("web") == 0o700
    files = {name: mode for name, mode in found.items() if (folder / name).is_file()}
    assert {"cupola.sqlite", "secret"} <= set(files)
    assert set(files.values()) == {0o600}
    world.app.state.sessions.kw["bind"].dispose()
