"""`cupola site open`: who can reach the page, and its steps in their order."""

from __future__ import annotations

import json
import re
import time

import pytest
from fastapi.testclient import TestClient

from cupola.secure.identity import Identity
from cupola.secure.roster import Roster
from cupola.site.consent import WITHDRAWN, study_folder
from cupola.site.join import Joining
from cupola.web.security_middleware import form_token
from cupola.web.site_page import make_page

SECRET = "s3cret-of-the-address"
TERMS = {
    "federation": "trial", "name": "north", "kind": "site", "coordinator": "localhost:1",
    "authority": "SHA256:" + ":".join(["AB"] * 32), "study": "outcome-1", "sites": 3,
    "minimum": 3, "compensator": "university",
}  # fmt: skip
PLAN = """\
name = "<b>outcome</b>"
rounds = 2
sum = "masked"
model = "linear"
local.lr = 0.1
[data]
name = "elsewhere"
called = "patients"
kind = "classification"
shape = [1]
class_names = ["0", "1"]
partition = { kind = "iid", sites = 3 }
"""


class Away:
    """A server that is not there: what it would say."""

    url, key = "https://example.org", "key"

    def __init__(self):
        self.posted, self.roster = [], None

    def post(self, path, body=None):
        self.posted.append((path, body))
        return {}

    def get(self, path):
        if path == "/api/site/roster":
            if self.roster is None:
                raise local_not_yet()
            return {"roster": self.roster.to_json(), "plan": PLAN.replace("<b>outcome</b>", "o")}
        return {"status": "finished", "files": [], "waiting": [], "of": 0, "done": 0}


def local_not_yet():
    from cupola.site.server import NotYet

    return NotYet("not yet")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """The page, a browser at it, and a study without a server."""
    (tmp_path / "table.csv").write_text("a,ill\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    server = Away()
    asked = {"real": dict(TERMS), "role": "site", "site": "north", "answer": "asked",
             "plan": PLAN.replace("<b>outcome</b>", "o"), "questions": []}  # fmt: skip

    def begin(folder, url, token, role):
        assert (url, token, role) == ("https://example.org", "t", "site")
        return Joining(folder, server, asked, "mark")

    class Nothing:
        def __init__(self, *_): ...

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

        def look(self): ...

    monkeypatch.setattr("cupola.site.join_session.begin", begin)
    monkeypatch.setattr(Joining, "_enrol", lambda *_: None)
    monkeypatch.setattr("cupola.site.join.Running", Nothing)
    app = make_page(tmp_path, 8432, SECRET)
    browser = TestClient(app, base_url="http://127.0.0.1:8432", follow_redirects=False)
    browser.server, browser.app_ = server, app
    yield browser
    app.state.session.close()


def post(browser, step, **fields):
    cookie = browser.cookies.get("cupola_site") or ""
    token = form_token(browser.app_.state.settings, cookie)
    return browser.post(f"/{SECRET}/{step}", data={"csrf": token, **fields})


def test_nobody_else_reaches_the_page(site):
    here = f"/{SECRET}/"
    assert site.get(here).status_code == 200
    for path in ("/", "/x/", "/x/state", f"/{SECRET[:-1]}/", "/openapi.json", "/docs"):
        assert site.get(path).status_code == 404, path
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:8433", "localhost:8432.evil.example", ""):
        assert site.get(here, headers={"Host": host}).status_code == 403, host
    assert site.get(here, headers={"Host": "localhost:8432"}).status_code == 200
    for token in ("", "wrong"):
        answer = site.post(f"/{SECRET}/token", data={"csrf": token, "url": "x", "token": "t"})
        assert answer.status_code == 403
    crossed = site.post(f"/{SECRET}/token", headers={"Sec-Fetch-Site": "cross-site"})
    assert crossed.status_code == 403
    assert site.post(f"/{SECRET[:-1]}/token").status_code == 404
    page = site.get(here)
    assert page.headers["referrer-policy"] == "no-referrer"  # the address is a secret
    links = re.findall(r'(?:src|href|action)="([^"]*)"', page.text)
    assert all(x.startswith(("/", "#")) and not x.startswith("//") for x in links)


def test_a_person_reads_chooses_compares_and_takes_part(site, tmp_path):
    here = f"/{SECRET}/"
    site.get(here)
    for early in ("data", "answer", "roster", "nonsense"):
        assert post(site, early, answer="accept").status_code == 422
    assert post(site, "token", url="https://example.org", token="t").status_code == 303
    page = site.get(here).text
    assert "table.csv" in page
    assert TERMS["authority"] in page
    assert post(site, "answer", answer="accept").status_code == 422  # nothing was read yet
    assert post(site, "data", file="table.csv", cores="1").status_code == 422  # no column
    assert post(site, "data", file="table.csv", target="ill", cores="0").status_code == 422
    assert post(site, "data", path="../nothing.csv", target="ill", cores="1").status_code == 422
    assert post(site, "data", file="table.csv", target="ill", cores="1").status_code == 303
    page = site.get(here).text
    assert "total of at least 3 sites" in page
    assert site.server.posted == []  # nothing was answered so far
    assert post(site, "answer", answer="accept").status_code == 303
    assert site.server.posted[-1][0] == "/api/site/accept"
    sent = json.dumps(site.server.posted)
    keys = json.loads((tmp_path / "identity.json").read_text())
    assert keys["sign"] not in sent
    assert str(tmp_path) not in sent
    own = Identity.open(tmp_path / "identity.json").public
    others = [Identity.simulated(i, n).public for i, n in enumerate(("south", "west"))]
    third = Identity.simulated(9, "university").public
    site.server.roster = Roster("outcome-1", (own, *others), third)
    state = until(site, "compare")
    assert state["stage"] == "compare"
    assert site.server.roster.fingerprint in site.get(here).text
    assert post(site, "roster", answer="same").status_code == 303
    until(site, "over")
    page = site.get(here).text
    assert "has finished" in page
    results = site.app_.state.session.joining.results
    results.mkdir(parents=True, exist_ok=True)
    (results / "report.html").write_text("<script>alert(1)</script>")
    assert f'href="{here}results/report.html"' in site.get(here).text
    got = site.get(f"{here}results/report.html")
    assert got.headers["content-disposition"].startswith("attachment")
    assert got.headers["content-type"] == "application/octet-stream"
    for outside in ("identity.json", "..%2Fidentity.json", "%2E%2E/identity.json", "nothing"):
        assert site.get(f"{here}results/{outside}").status_code == 404, outside
    assert ("/api/site/ready", {"roster": site.server.roster.digest.hex()}) in site.server.posted


def test_a_person_declines_or_leaves(site):
    site.get(f"/{SECRET}/")
    post(site, "token", url="https://example.org", token="t")
    assert post(site, "answer", answer="decline").status_code == 303
    assert [path for path, _ in site.server.posted] == ["/api/site/decline"]
    assert "You declined" in site.get(f"/{SECRET}/").text
    assert post(site, "again").status_code == 303
    assert 'name="token"' in site.get(f"/{SECRET}/").text
    assert post(site, "again").status_code == 422
    post(site, "token", url="https://example.org", token="t")
    assert post(site, "answer", answer="decline").status_code == 303
    assert post(site, "data", file="table.csv").status_code == 422


def test_a_person_leaves_while_it_waits_or_runs(site, tmp_path, monkeypatch):
    here = f"/{SECRET}/"
    site.get(here)
    assert post(site, "leave").status_code == 422
    post(site, "token", url="https://example.org", token="t")
    post(site, "data", file="table.csv", target="ill", cores="1")
    post(site, "answer", answer="accept")
    own = Identity.open(tmp_path / "identity.json").public
    others = [Identity.simulated(i, n).public for i, n in enumerate(("south", "west"))]
    site.server.roster = Roster(
        "outcome-1", (own, *others), Identity.simulated(9, "university").public
    )
    halted = {"status": "stopped", "reason": "for lunch", "resumable": True}
    monkeypatch.setattr(Joining, "progress", lambda _: halted)
    until(site, "compare")
    post(site, "roster", answer="same")
    for _ in range(200):
        if "for lunch" in site.get(f"{here}state").json()["text"]:
            break
        time.sleep(0.05)
    assert "waiting for it to be resumed" in site.get(here).text
    assert post(site, "leave").status_code == 303
    assert "You left the study" in site.get(here).text
    assert site.server.posted[-1][0] == "/api/site/leave"
    assert (study_folder(tmp_path, "outcome-1") / WITHDRAWN).exists()


def until(site, stage):
    for _ in range(200):
        now = site.get(f"/{SECRET}/state").json()
        if now["stage"] in (stage, "over"):
            return now
        time.sleep(0.05)
    raise AssertionError(now)
