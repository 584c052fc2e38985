"""A party's way into a study at real sites, and what is refused on it. No FLARE process runs."""

from __future__ import annotations

import base64
import io
import json
import threading
import time
import zipfile
from types import SimpleNamespace

import pytest
import uvicorn
from web_world import World

from cupola.analysis.plan_file import load
from cupola.association.analysis import AssociationAnalysis
from cupola.cli.joining import _agree
from cupola.engines.flare import provision
from cupola.engines.flare.federation_settings import FederationSettings
from cupola.errors import CupolaError, DataError, FederationError, PlanError
from cupola.secure.identity import Identity
from cupola.secure.roster import Roster
from cupola.site import read_settings
from cupola.site.dataset_settings import named_data, write_settings
from cupola.site.join import Choice, begin
from cupola.site.server import NotYet, Server, Unknown, checked_url
from cupola.site.settings import SiteSettings
from cupola.training.analysis import TrainingAnalysis
from cupola.web.study_service import without_paths

SITES = ["north", "south", "west"]
DATA = {"loader": "csv", "path": "table.csv", "target": "ill", "test": 0.0}
PLAN = {
    "name": "outcome",
    "rounds": 2,
    "sum": {"kind": "masked"},
    "model": {"name": "linear"},
    "data": {
        "name": "elsewhere",
        "called": "patients",
        "kind": "classification",
        "shape": [2],
        "class_names": ["0", "1"],
        "partition": {"kind": "iid", "sites": 3, "test": 0.2},
    },
    "evaluation": {"on": "sites"},
    "recipe": "fedavg",
    "local": {"lr": 0.1, "batch_size": 8},
}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A server with a federation, reached by HTTP."""
    folder = tmp_path_factory.mktemp("real")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))  # FLARE keeps notes there
        settings = FederationSettings(
            name="trial",
            coordinator="localhost:1",
            sites=SITES,
            compensator="university",
            users={"a@example.org": "lead"},
        )
        provision.init(settings, folder / "federation")
        world = World(folder / "web", federation=folder / "federation")
        config = uvicorn.Config(world.app, port=0, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        beside = threading.Thread(target=server.run, daemon=True)
        beside.start()
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        world.url = f"http://127.0.0.1:{port}"
        yield world
        server.should_exit = True
        beside.join()


@pytest.fixture
def study(real):
    ada, made = real.known("ada"), real.study("ada", **PLAN)
    answer = real.shown(ada, f"/studies/{made}/invite", sites="\n".join(SITES), real="yes")
    assert answer.status_code == 200, answer.text
    words = answer.text.split("<h2>Tokens")[1].split("<pre>")[1:]
    tokens = dict(zip([*SITES, "university"], (w.split("<")[0] for w in words)))
    return SimpleNamespace(id=made, tokens=tokens, text=answer.text)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("a,b,ill\n" + "".join(f"{i},{i % 3},{i % 2}\n" for i in range(40)))
    return path


def choice(table, **more):
    return Choice("patients", {**DATA, "path": str(table)}, **more)


def no_kit(joining):
    """Certificates are another test's."""
    joining._enrol = lambda _: None
    return joining


def test_four_parties_agree_on_who_takes_part_and_the_study_begins(real, study, tmp_path, table):
    assert "cupola site join https://cupola.example " in study.text
    assert "cupola compensator join https://cupola.example " in study.text
    parties = {}
    for name, token in study.tokens.items():
        role = "compensator" if name == "university" else "site"
        made = parties[name] = no_kit(begin(tmp_path / name, real.url, token, role))
        assert made.agreed() is None
        if role == "site":
            shown = made.look(choice(table))
            assert [row["task"] for row in shown.answers][:1] == ["train"]
            assert "at least 3 sites" in shown.answers[0]["to"]
            assert not shown.objections
        made.accept(choice(table) if role == "site" else Choice())
    rosters = {name: made.agreed() for name, made in parties.items()}
    assert len({roster.fingerprint for roster, _ in rosters.values()}) == 1
    roster = rosters["north"][0]
    assert [p.name for p in roster.sites] == SITES
    assert roster.fingerprint in real.known("ada").get(f"/studies/{study.id}").text
    with pytest.raises(FederationError, match="another roster was pinned"):
        parties["north"].server.post("/api/site/ready", {"roster": "0" * 64})
    for name, made in parties.items():
        real.sweep()
        assert made.progress()["status"] == "queued"
        assert name in made.progress()["waiting"]
        made.pin(*rosters[name])
    real.sweep()
    job, folder = real.launcher.jobs[-1]
    assert job.real["roster"] == roster.to_json()
    assert 'called = "patients"' in job.real["plan"]
    assert read_settings(tmp_path / "north", SiteSettings).studies[roster.study].data == "patients"
    again = begin(tmp_path / "north", real.url, study.tokens["north"], "site")  # broken off
    assert again.answered
    assert again.agreed()[0].digest == roster.digest
    real.launcher.end(folder, "failed", "no such thing: /srv/secret place/x.csv")
    real.sweep()
    assert "/srv" not in again.progress()["reason"]
    assert (tmp_path / "north" / "joining.json").stat().st_mode & 0o077 == 0


def test_tokens_work_once_in_one_folder_for_one_role(real, study, tmp_path):
    token = study.tokens["south"]
    with pytest.raises(PlanError, match="cupola site join"):
        begin(tmp_path / "a", real.url, token, "compensator")
    assert begin(tmp_path / "a", real.url, token, "site").site == "south"
    for wrong in (token, "foreign", "x" * 43):
        with pytest.raises(Unknown, match="wrong, or was used"):
            begin(tmp_path / "b", real.url, wrong, "site")
    assert not (tmp_path / "b").exists()
    page = real.post(real.known("cleo"), "/join", token=study.tokens["west"])
    assert "was not used up" in page.text  # a browser cannot be a real site
    begin(tmp_path / "c", real.url, study.tokens["west"], "site").decline()
    with pytest.raises(Unknown):
        begin(tmp_path / "c", real.url, study.tokens["west"], "site")
    shown = real.known("ada").get(f"/studies/{study.id}").text
    assert "declined" in shown
    assert "certificate" not in real.known("ada").get("/audit").text


def test_a_lost_key_is_replaced_by_a_new_token(real, study, tmp_path):
    first = begin(tmp_path / "a", real.url, study.tokens["north"], "site")
    page = real.known("ada").get(f"/studies/{study.id}").text
    number = page.split(f"/studies/{study.id}/renew/")[1].split('"')[0]
    answer = real.shown(real.known("ada"), f"/studies/{study.id}/renew/{number}").text
    token = answer.split("<pre>")[1].split("<")[0]
    with pytest.raises(Unknown):
        first.progress()
    assert begin(tmp_path / "b", real.url, token, "site").site == "north"


def zipped(**files):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return made.getvalue()


def bomb(**files):
    """Below the size of a request, and 50 MB when unpacked."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in {**files, "site.yaml": bytes(50_000_000)}.items():
            archive.writestr(name, text)
    assert len(made.getvalue()) < 64_000
    return made.getvalue()


def members(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_certificates_are_for_the_tokens_name_once_and_nothing_else(real, study, tmp_path):
    """One test, since making keys takes its time."""
    joining = begin(tmp_path / "north", real.url, study.tokens["north"], "site")
    folder = real.settings.federation
    invitations = folder / "invitations"
    own = provision.request(invitations / "north.toml", tmp_path / "own")
    other = provision.request(invitations / "south.toml", tmp_path / "other")
    files = members(own)
    csr = members(other)["south.csr"]
    facts = json.loads(files["request.json"])
    wrong = {
        "another name": (other.read_bytes(), "must be the certificate"),
        "another's key": (zipped(**{**files, "north.csr": csr}), "can be signed"),
        "outside": (zipped(**files, **{"../../evil": b"x"}), "can be signed"),
        "root": (zipped(**files, **{"/etc/evil": b"x"}), "can be signed"),
        "name": (
            zipped(**{**files, "request.json": json.dumps({**facts, "name": "../north"})}),
            "must be the certificate",
        ),
        "kind": (
            zipped(**{**files, "request.json": json.dumps({**facts, "cert_type": "lead"})}),
            "can be signed",
        ),
        "no zip": (b"PK\x03\x04", "can be signed"),
        "bomb": (bomb(**files), "can be signed"),
        "many": (zipped(**files, **{f"f{i}": b"" for i in range(400)}), "can be signed"),
        "nothing": (b"", "at most"),
        "large": (bytes(70_000), "at most"),
    }

    def ask(body):
        return joining.server.post(
            "/api/site/certificate", {"request": base64.b64encode(body).decode()}
        )

    for what, (body, said) in wrong.items():
        with pytest.raises(FederationError, match=said) as refused:
            ask(body)
        assert str(tmp_path) not in str(refused.value), what
        assert str(folder) not in str(refused.value), what
    assert not list((folder / "signed").glob("*.zip"))
    assert not list(folder.parent.rglob("evil"))
    signed = base64.b64decode(ask(own.read_bytes())["signed"])
    assert base64.b64decode(ask(own.read_bytes())["signed"]) == signed  # broken off, asked again
    again = provision.request(invitations / "north.toml", tmp_path / "second")
    with pytest.raises(FederationError, match="certificate for another key"):
        ask(again.read_bytes())
    # The other side: what a server sends is no way into the site's folder.
    good = members(io.BytesIO(signed))
    evils = [zipped(**good, **{e: b"x"}) for e in ("../../evil", "/tmp/evil", "a/../../evil")]
    for evil in (*evils, bomb(**good)):
        body = base64.b64encode(evil).decode()
        joining.folder = tmp_path / "own"
        joining.server = SimpleNamespace(post=lambda *_, body=body: {"signed": body})
        with pytest.raises(FederationError):
            joining._enrol(joining.terms)
        assert not (tmp_path / "own" / "kit").exists()
    body = base64.b64encode(signed).decode()
    joining.server = SimpleNamespace(post=lambda *_: {"signed": body})
    joining._enrol(joining.terms)
    assert (tmp_path / "own" / "kit" / "startup").is_dir()
    for key in (tmp_path / "own").rglob("*.key"):
        assert key.read_bytes() not in signed + own.read_bytes()
        assert not [p for p in folder.parent.rglob("*.key") if p.read_bytes() == key.read_bytes()]
    joining.asked["real"]["authority"] = "SHA256:" + ":".join(["00"] * 32)
    del joining.terms
    with pytest.raises(DataError, match="belongs to the federation 'trial'"):
        joining._enrol(joining.terms)


def test_only_the_first_coordinator_gives_a_name_its_first_certificate(real, tmp_path, monkeypatch):
    """Else any coordinator's account could become a site that was never invited."""
    ben, made = real.known("ben"), real.study("ben", **PLAN)
    refused = real.post(ben, f"/studies/{made}/invite", sites="west", real="yes")
    assert refused.status_code == 409
    assert "only the first coordinator" in refused.text
    monkeypatch.setattr("cupola.web.organiser.Organiser.has_signed", lambda *_: True)
    answer = real.shown(ben, f"/studies/{made}/invite", sites="west", real="yes")
    token = answer.text.split("<pre>")[1].split("<")[0]
    monkeypatch.undo()
    joining = begin(tmp_path / "west", real.url, token, "site")
    with pytest.raises(FederationError, match="first certificate"):
        joining.server.post("/api/site/certificate", {"request": "eA=="})


def test_a_party_waits_for_a_resumption_and_not_for_ever(real, study, tmp_path):
    joining = begin(tmp_path / "a", real.url, study.tokens["north"], "site")
    states = [{"status": "stopped", "resumable": True}] * 2 + [{"status": "running"}]
    for rest, wait, last in (
        ([{"status": "finished"}], 60.0, "finished"),
        ([{"status": "failed", "resumable": False}], 60.0, "failed"),  # a site has left
        ([{"status": "failed", "resumable": True}] * 3, 0.0, "stopped"),
    ):
        told = iter([*states, *rest])
        joining.progress = lambda told=told: next(told)
        joining.__dict__["terms"], seen = None, []
        joining._collect = lambda _: None
        assert joining._follow(seen.append, 0.0, None, wait)["status"] == last
    joining.server.key = "gone"
    del joining.progress
    with pytest.raises(FederationError, match="no longer knows"):
        joining._follow(seen.append, 0.0, None, 60.0)


def test_terms_that_would_lead_elsewhere_are_refused(real, study, tmp_path):
    joining = begin(tmp_path / "a", real.url, study.tokens["north"], "site")
    good = dict(joining.asked["real"])
    for key, value in (
        ("name", "../north"), ("study", "../../x"), ("study", "a/b"), ("coordinator", "x\n"),
        ("authority", "none"), ("kind", "user"), ("sites", 0), ("more", "x"),
    ):  # fmt: skip
        joining.asked["real"] = {**good, key: value}
        joining.__dict__.pop("terms", None)
        with pytest.raises(FederationError, match="not well formed"):
            _ = joining.terms


def test_what_was_accepted_cannot_be_exchanged(real, study, tmp_path, table):
    joining = no_kit(begin(tmp_path / "a", real.url, study.tokens["north"], "site"))
    joining.accept(choice(table))
    own = Identity.open(tmp_path / "a" / "identity.json").public
    others = tuple(Identity.simulated(i, n).public for i, n in enumerate(SITES[1:]))
    third = Identity.simulated(9, "university").public
    plan, name = joining.accepted["plan"], joining.accepted["study"]
    joining._compare(Roster(name, (own, *others), third), plan)
    joining._compare(Roster(name, (own, *others), third), plan.replace("sites = 3", "sites = 4"))
    stranger = Identity.simulated(8, "elsewhere").public
    for roster, text, said in (
        (Roster("another", (own, *others), third), plan, "another study"),
        (Roster(name, (own, *others), third), plan.replace("rounds = 2", "rounds = 9"), "the plan"),
        (Roster(name, (own, *others), stranger), plan, "another compensator"),
        (Roster(name, (own, *others), None), plan, "another compensator"),
        (Roster(name, (stranger, *others), third), plan, "own keys"),
        (Roster(name, (own, *others), third, changes=True), plan, "lets sites change"),
    ):
        with pytest.raises(FederationError, match=said):
            joining._compare(roster, text)
    but_for_sites = AssociationAnalysis.without_sites
    of_cohorts = {"test": "linear", "cohorts": [{"name": "a"}]}
    assert but_for_sites(of_cohorts) == but_for_sites({**of_cohorts, "cohorts": [{"name": "b"}]})
    leaving = {**of_cohorts, "cohorts": [{"name": "a", "may_leave": True}]}
    assert but_for_sites(of_cohorts) != but_for_sites(leaving)
    weaker = SimpleNamespace(study=name, minimum=2, compensator=third, sites=(own, *others))
    with pytest.raises(FederationError, match="fewer sites"):
        joining._compare(weaker, plan)


def test_a_site_is_not_widened_by_what_a_study_asks(real, tmp_path, table):
    """Answers without masks need a word of their own; settings that are there are the site's."""
    plan = {**PLAN, "sum": {"kind": "plain"}}
    made = real.study("ada", **plan)
    answer = real.shown(real.known("ada"), f"/studies/{made}/invite", sites="north", real="yes")
    token = answer.text.split("<pre>")[1].split("<")[0]
    joining = no_kit(begin(tmp_path / "a", real.url, token, "site"))
    assert "without masks" in " ".join(joining.look(choice(table)).objections)
    with pytest.raises(PlanError, match="without masks"):
        joining.accept(choice(table))
    assert not (tmp_path / "a" / "cupola-site.toml").exists()
    shown = joining.look(choice(table, unmasked_tasks=("train", "evaluate")))
    assert "own answer" in shown.answers[0]["to"]
    (tmp_path / "a" / "cupola-site.toml").write_text('name = "north"\n')
    with pytest.raises(PlanError, match="change it there"):
        joining.look(choice(table, unmasked_tasks=("train",)))
    (tmp_path / "a" / "cupola-site.toml").write_text('name = "south"\n')
    with pytest.raises(DataError, match="folder of 'south'"):
        joining.look(choice(table))


def test_what_a_site_decides_is_for_its_owner_alone(real, study, tmp_path, table):
    """Its settings can hold the salt of people's fingerprints."""
    joining = no_kit(begin(tmp_path / "a", real.url, study.tokens["north"], "site"))
    joining.accept(choice(table))
    path = tmp_path / "a" / "cupola-site.toml"
    modes = {p.name: p.stat().st_mode & 0o777 for p in (tmp_path / "a").iterdir() if p.is_file()}
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o700
    assert {modes[name] for name in ("cupola-site.toml", "joining.json", "identity.json")} == {
        0o600
    }
    path.chmod(0o644)  # as versions before this one left it
    settings = read_settings(tmp_path / "a", SiteSettings)
    more = {**settings.data, "others": {**DATA, "path": str(table)}}
    write_settings(tmp_path / "a", settings.model_copy(update={"data": more}))
    assert path.stat().st_mode & 0o777 == 0o600
    assert "others" in read_settings(tmp_path / "a", SiteSettings).data


class Unread:
    """A party that waits for somebody to compare the roster."""

    def __init__(self, known=False):
        keys = [Identity.simulated(i, name).public for i, name in enumerate(SITES)]
        self.roster, self.known, self.did = Roster("trial", tuple(keys), None, 3), known, []

    def agreed(self):
        return self.roster, "plan"

    def pinned(self, roster):
        return self.known and roster is self.roster

    def pin(self, *_):
        self.did.append("pinned")

    def leave(self):
        self.did.append("left")


@pytest.mark.parametrize(
    ("typed", "compared", "known", "did"),
    [
        ("", None, False, []),  # a script's --yes: nobody can have read it
        ("y\n", None, False, ["pinned"]),
        ("n\n", None, False, ["left"]),
        ("", "same", False, ["pinned"]),
        ("y\n", "other", False, []),
        ("", None, True, ["pinned"]),  # compared before, and taken up again
    ],
)
def test_a_roster_is_not_accepted_unread(typed, compared, known, did, monkeypatch):
    party = Unread(known)
    told = {"same": party.roster.fingerprint.upper(), "other": "abcde-" * 4 + "abcde", None: None}
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    if did:
        assert _agree(party, told[compared]) == (did == ["pinned"])
    else:
        with pytest.raises(CupolaError, match="compared"):
            _agree(party, told[compared])
    assert party.did == did


def test_a_busy_server_is_asked_again(real, study, tmp_path, monkeypatch):
    joining = begin(tmp_path / "a", real.url, study.tokens["north"], "site")
    waits = []
    monkeypatch.setattr("time.sleep", waits.append)

    async def entered(*_):
        return len(waits) >= 2  # no place for two tries

    monkeypatch.setattr("cupola.web.backpressure.Lane.enter", entered)
    assert joining.progress()["status"] == "inviting"
    assert len(waits) == 2
    assert all(2 <= wait <= 5 for wait in waits)


def test_only_sites_of_the_federation_and_plans_for_them(real):
    ada = real.known("ada")
    for plan, sites, said in (
        (PLAN, "east", "no site of the federation"),
        ({**PLAN, "twin": True}, "north", "twin"),
        (
            {**PLAN, "privacy": {"mechanism": "dp-sgd", "epsilon": 2.0}},
            "north",
            "privacy.noise_multiplier",
        ),
        (
            {**PLAN, "privacy": {"mechanism": "central", "noise_multiplier": 2.0}},
            "north",
            "everybody knows",
        ),
    ):
        made = real.study("ada", **plan)
        answer = real.post(ada, f"/studies/{made}/invite", sites=sites, real="yes")
        assert answer.status_code == 409
        assert said in answer.text


def test_without_a_federation_nothing_is_real(world):
    made = world.study("ada")
    answer = world.post(world.known("ada"), f"/studies/{made}/invite", sites="a", real="yes")
    assert answer.status_code == 409
    token = world.invite(world.known("ada"), made, "a")["a"]
    site = world.visitor()
    key = site.post("/api/join", json={"token": token}).json()["key"]
    bearer = {"Authorization": f"Bearer {key}"}
    signed = site.post("/api/site/certificate", json={"request": "eA=="}, headers=bearer)
    assert signed.status_code == 409
    assert site.get("/api/site/roster", headers=bearer).status_code == 404
    assert site.post("/api/site/ready", json={"roster": ""}, headers=bearer).status_code == 404


def test_a_simulated_site_joins_with_the_same_command(real, tmp_path):
    made = real.study("ada")
    token = real.invite(real.known("ada"), made, "a")["a"]
    joining = begin(tmp_path / "a", real.url, token, "site")
    assert joining.terms is None
    joining.accept(Choice())
    folder = real.finish(made)
    (folder / "run" / "plan.toml").write_text("x = 1\n")
    seen = []
    assert joining.take_part(seen.append, every=0.01)["status"] == "finished"
    assert (joining.results / "plan.toml").read_text() == "x = 1\n"
    joining.server.url += "/nowhere"
    with pytest.raises(NotYet):
        joining.progress()


@pytest.mark.parametrize(
    "url",
    ["http://example.org", "ftp://x", "example.org", "https://", "https://a:b@c", "http://[::2",
     "https://x/?q=1", "http://localhost.evil.org", "https://a#b", "https://@a", "https://a\\b",
     "file:///etc/passwd"],
)  # fmt: skip
def test_tokens_go_over_https_only(url):
    with pytest.raises(PlanError):
        checked_url(url)


def test_a_token_for_this_machine_goes_through_no_proxy(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    for url in ("http://127.0.0.1:1", "HTTP://localhost:1"):
        server = Server(url)
        assert server.url.startswith("http://")
        named = [h for h in server._opener.handlers if type(h).__name__ == "ProxyHandler"]
        assert all(not handler.proxies for handler in named)


def test_a_redirect_is_not_followed(world):
    server = uvicorn.Server(uvicorn.Config(world.app, port=0, log_level="error", lifespan="off"))
    beside = threading.Thread(target=server.run, daemon=True)
    beside.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        with pytest.raises(FederationError, match="303"):
            Server(f"http://127.0.0.1:{port}", "secret").get("/audit")
    finally:
        server.should_exit = True
        beside.join()


def test_data_sets_as_people_write_them(tmp_path, table):
    training, study = TrainingAnalysis(load(PLAN)), AssociationAnalysis.__new__(AssociationAnalysis)
    assert named_data("patients", training) == ("patients", None)
    assert named_data("p={part = 2}", training) == ("p", {"part": 2})
    assert named_data(f"p={table}", training, "ill")[1] == {**DATA, "path": str(table)}
    assert named_data(f"p={table}", None) == ("p", None)  # a simulated site's are the server's
    for wrong in ("=x", "p={", f"p={table}", f"p={tmp_path}/nothing"):
        for analysis in (training, study):
            with pytest.raises((PlanError, DataError)):
                named_data(wrong, analysis)
    for end in ("bed", "bim", "fam", "cov", "a.keep"):
        (tmp_path / f"chip.{end}").write_text("")
    base = str(tmp_path / "chip")
    whole = {"bfile": base, "cov": f"{base}.cov"}
    assert named_data(f"c={base}", study) == named_data(f"c={base}.bed", study) == ("c", whole)
    keep = f"{base}.a.keep"
    assert named_data(f"c={keep}", study)[1] == {**whole, "keep": keep}


def test_reasons_name_no_places():
    said = "cannot read '/srv/cupola/data/x.bed': see https://example.org/a and 3/4 of /etc/y.toml"
    assert without_paths(said) == (
        "cannot read 'x.bed': see https://example.org/a and 3/4 of y.toml"
    )
