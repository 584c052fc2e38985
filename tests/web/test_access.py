"""Every route, tried by everybody: nobody, strangers, a participant, the study's coordinator."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

OPEN, ANY, COORDINATORS, SEEN, OWN, INVITED, SITE, MANAGER = range(8)
ROUTES = {
    "GET /login": OPEN,
    "POST /login": OPEN,
    "GET /join": OPEN,
    "POST /join": OPEN,
    "GET /assets/report.css": OPEN,
    "GET /assets/report.js": OPEN,
    "POST /api/join": OPEN,
    "GET /": ANY,
    "POST /logout": ANY,
    "GET /account": ANY,
    "POST /account": ANY,
    "GET /compare": ANY,
    "GET /api/studies": ANY,
    "POST /accounts/{number}/delete": MANAGER,
    "GET /accounts": COORDINATORS,
    "POST /accounts": COORDINATORS,
    "GET /audit": COORDINATORS,
    "GET /studies/new": COORDINATORS,
    "POST /studies/new": COORDINATORS,
    "POST /studies/upload": COORDINATORS,
    "GET /studies/{study_id}": SEEN,
    "GET /studies/{study_id}/foreseen": SEEN,
    "GET /studies/{study_id}/plan.toml": SEEN,
    "GET /studies/{study_id}/runs/{number}": SEEN,
    "GET /studies/{study_id}/runs/{number}/stream": SEEN,
    "GET /studies/{study_id}/runs/{number}/hits": SEEN,
    "GET /studies/{study_id}/runs/{number}/files/{name}": SEEN,
    "GET /api/studies/{study_id}": SEEN,
    "GET /studies/{study_id}/edit": OWN,
    "GET /studies/{study_id}/tokens/{key}": OWN,
    "POST /studies/{study_id}/edit": OWN,
    "POST /studies/{study_id}/invite": OWN,
    "POST /studies/{study_id}/play": OWN,
    "POST /studies/{study_id}/renew/{number}": OWN,
    "POST /studies/{study_id}/{action}": OWN,
    "GET /join/{number}": INVITED,
    "GET /join/{number}/foreseen": INVITED,
    "POST /join/{number}/{answer}": INVITED,
    "GET /api/site": SITE,
    "POST /api/site/accept": SITE,
    "POST /api/site/decline": SITE,
    "POST /api/site/leave": SITE,
    "GET /api/site/progress": SITE,
    "GET /api/site/files/{name}": SITE,
    "POST /api/site/certificate": SITE,
    "GET /api/site/roster": SITE,
    "POST /api/site/ready": SITE,
}
AWAY = (303, 401)
#: nobody, a strange participant, a strange coordinator, a participant, the coordinator
ALLOWED = {
    OPEN: ("yes",) * 5,
    ANY: (AWAY, "yes", "yes", "yes", "yes"),
    COORDINATORS: (AWAY, (403,), "yes", (403,), "yes"),
    SEEN: (AWAY, (404,), (404,), "yes", "yes"),
    OWN: (AWAY, (403, 404), (404,), (403,), "yes"),
    INVITED: (AWAY, (404,), (404,), "yes", (404,)),
    SITE: ((401,),) * 5,
    MANAGER: (AWAY, (403,), (403,), (403,), "yes"),
}
WHO = (None, "dora", "ben", "cleo", "ada")


def routes(app):
    found = {}
    stack = list(app.routes)
    while stack:
        route = stack.pop()
        inner = getattr(getattr(route, "original_router", None), "routes", None)
        if inner:
            prefix = ""
            stack += inner
        if isinstance(route, APIRoute):
            prefix = "" if route.path.startswith("/") else "/"
            for method in route.methods:
                found[f"{method} {prefix}{route.path}"] = route
    return found


def test_the_table_names_every_route(world):
    assert set(routes(world.app)) == set(ROUTES)


@pytest.mark.parametrize("route", ROUTES)
def test_who_may(world, places, route):
    method, path = route.split(" ")
    values = dict(places)
    if "/join/" in path or "renew" in path:
        values["number"] = places["join"]
    url = re.sub(r"{(\w+)}", lambda m: values[m[1]], path)
    for who, expected in zip(WHO, ALLOWED[ROUTES[route]]):
        world.calm()
        once = url in ("/login", "/logout")  # they change who is logged in
        browser = world.visitor(who) if once else world.known(who)
        if method == "GET":
            answer = browser.get(url)
        elif url.startswith("/api/"):
            answer = browser.post(url, json={"token": "wrong"})
        else:
            answer = world.post(browser, url)
        said = f"{who}: {answer.status_code} {answer.text[:300]}"
        if expected == "yes":
            assert answer.status_code < 400 or answer.status_code in (401, 404, 409, 422), said
            if answer.status_code in (401, 404):
                assert url in ("/login", "/api/join"), said
            if "/delete" in path:
                assert answer.status_code == 409  # the first coordinator's own stays
        else:
            assert answer.status_code in expected, said
            if answer.status_code == 303:
                assert answer.headers["location"].startswith("/login"), said


@pytest.mark.parametrize("route", [r for r in ROUTES if r.startswith("POST") and "/api/" not in r])
def test_forms_need_their_token(world, places, route):
    path = re.sub(r"{(\w+)}", lambda m: places[m[1]], route.split(" ")[1])
    ada, ben = world.known("ada"), world.known("ben")
    for token in (None, "", "wrong", world.token(ben)):
        data = {} if token is None else {"csrf": token}
        assert ada.post(path, data=data).status_code == 403
    there = {"csrf": world.token(ada)}
    crossed = ada.post(path, data=there, headers={"Sec-Fetch-Site": "cross-site"})
    assert crossed.status_code == 403
    assert ada.post(path, content=b"{}", headers={"content-type": "x/y"}).status_code == 403


def test_a_fault_of_the_server_is_a_page_without_its_reason(world, monkeypatch):
    monkeypatch.setattr("cupola.web.routes.account._accounts", lambda *_: 1 / 0)
    browser = TestClient(world.app, raise_server_exceptions=False)
    browser.cookies.update(world.known("ada").cookies)
    answer = browser.get("/accounts")
    assert answer.status_code == 500
    assert "its log says more" in answer.text
    assert "division" not in answer.text


def test_lists_show_only_ones_own(world, places):
    study = places["study_id"]
    plan = 'name = "seen in the audit"\ntest = "linear"'
    made = world.post(world.known("ada"), "/studies/upload", text=plan).headers["location"]
    for who, inside in (("ada", True), ("ben", False), ("cleo", True), ("dora", False)):
        browser = world.known(who)
        assert (study in browser.get("/?search=seen by few").text) == inside
        assert browser.get(f"/api/studies/{study}").status_code == (200 if inside else 404)
    assert made not in world.known("ben").get("/audit").text
    assert made in world.known("ada").get("/audit").text


def test_pages_name_no_other_host_and_forbid_scripts_from_there(world, places):
    ada = world.visitor("ada")
    for url in (
        "/",
        "/studies/new",
        "/studies/new?kind=training",
        f"/studies/{places['study_id']}",
        f"/studies/{places['study_id']}/runs/1",
        "/compare",
        "/audit",
        "/accounts",
        "/join",
    ):
        answer = ada.get(url)
        links = re.findall(r'(?:src|href|action)="([^"]*)"', answer.text)
        assert links
        assert all(x.startswith(("/", "#", "?")) and not x.startswith("//") for x in links)
        assert answer.headers["x-frame-options"] == "DENY"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "<script>" not in answer.text
