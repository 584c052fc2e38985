"""What a party takes and what it refuses, without FLARE's processes."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cupola.errors import CupolaError, PlanError
from cupola.flare import policy
from cupola.flare.coordinate import RESULTS, checked, packed, unpack
from cupola.flare.engine import FlareSites
from cupola.flare.jobs import COORDINATOR_FILE, SITE_FILE, Job, write
from cupola.flare.settings import FederationSettings

LEAD = "alice@hospital-a.org"
PLAN = """
name = "trial"
rounds = 1
data = {name = "digits", partition = {kind = "iid", sites = 3}}
model = {name = "linear"}
"""
JOB = Job("study", PLAN, ["a", "b", "c"])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"coordinator": "nowhere"}, "not host:port"),
        ({"sites": ["a", "b", "a"]}, "same name"),
        ({"sites": ["../a"]}, "letters, digits"),
        ({"compensator": "a"}, "same name"),
        ({"users": {"alice": "lead"}}, "e-mail"),
        ({"users": {LEAD: "project_admin"}}, "'lead' or 'member'"),
        ({"user": {}}, "Extra inputs"),
    ],
)
def test_a_federation_is_checked(changes, said):
    facts = {"name": "x", "coordinator": "localhost:1", "sites": ["a"], "users": {LEAD: "lead"}}
    FederationSettings.model_validate(facts)
    with pytest.raises(ValueError, match=said):
        FederationSettings.model_validate({**facts, **changes})


@pytest.fixture
def validator(tmp_path, monkeypatch):
    pytest.importorskip("nvflare")
    from nvflare.fuel.sec.audit import AuditService

    from cupola.flare.validator import JobValidator

    events = []
    monkeypatch.setattr(AuditService, "add_event", lambda **facts: events.append(facts))
    write(JOB, tmp_path / "job")
    return JobValidator(), tmp_path / "job", events


def test_the_jobs_we_write_are_taken(validator):
    judge, job, events = validator
    assert judge.validate(str(job / "coordinator")) == ("", {})
    assert judge.validate(str(job / "site")) == ("", {})
    assert events == []


def _change(path: Path, change):
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def _add(path: Path, text: str = ""):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


_EVIL = {"id": "x", "path": "os.system", "args": {"command": "true"}}
CHANGES = {
    "code": lambda app: _add(app / "custom" / "evil.py"),
    "code in the folder": lambda app: _add(app / "config" / "evil.py"),
    "a log configuration": lambda app: _add(app / "config" / "log_config.json", "{}"),
    "a link": lambda app: (app / "config" / "link").symlink_to("/etc/hostname"),
    "a component": lambda app: _change(app / SITE_FILE, lambda f: f["components"].append(_EVIL)),
    "a filter": lambda app: _change(
        app / SITE_FILE, lambda f: f["task_result_filters"].append({"tasks": ["*"]})
    ),
    "another class": lambda app: _change(
        app / SITE_FILE, lambda f: f["executors"][0]["executor"].update(path="a.B")
    ),
    "an argument": lambda app: _change(
        app / SITE_FILE, lambda f: f["executors"][0]["executor"]["args"].update(folder="/")
    ),
    "another key": lambda app: _change(app / SITE_FILE, lambda f: f.update(handlers=[])),
    "no JSON": lambda app: (app / SITE_FILE).write_text("{"),
    "a list": lambda app: (app / SITE_FILE).write_text("[]"),
    "a number for a study": lambda app: _change(
        app / SITE_FILE, lambda f: f["executors"][0]["executor"]["args"].update(study=1)
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_every_other_job_is_refused_and_audited(validator, what):
    judge, job, events = validator
    CHANGES[what](job / "site")
    refused, _ = judge.validate(str(job / "site"))
    assert refused
    assert [event["action"] for event in events] == ["cupola.job_refused"]


def test_a_coordinators_job_has_known_arguments_only(validator):
    judge, job, _ = validator
    _change(
        job / "coordinator" / COORDINATOR_FILE, lambda f: f["workflows"][0]["args"].update(evil=1)
    )
    assert judge.validate(str(job / "coordinator"))[0]


def test_nobody_has_the_right_to_bring_code_or_run_a_shell(tmp_path):
    for kind in ("coordinator", "site", "compensator", "user"):
        policy.write(tmp_path, kind, tmp_path)
        rights = json.loads((tmp_path / "authorization.json").read_text())["permissions"]
        assert all(r["byoc"] == r["shell_commands"] == "none" for r in rights.values())
        assert "any" not in rights.values()
        assert [role for role, r in rights.items() if "submit_job" in r] == ["lead"]
        if kind in ("site", "compensator"):
            local = json.loads((tmp_path / "resources.json").read_text())
            assert local["class_allow_list"] == [policy.EXECUTOR]
            assert local["class_list_enforcement_mode"] == "enforce"
            assert local["allow_log_streaming"] is False


def test_what_a_site_declines_is_audited(monkeypatch):
    pytest.importorskip("nvflare")
    from nvflare.apis.shareable import Shareable
    from nvflare.apis.signal import Signal
    from nvflare.fuel.sec.audit import AuditService
    from nvflare.fuel.utils import log_utils

    from cupola.flare import executor

    class Child:
        def __init__(self, *_):
            pass

        def ask(self, message, stopped):
            del stopped
            return b"Fthis site does not run this task" if message[:1] == b"Q" else b"A"

    events = []
    monkeypatch.setattr(AuditService, "add_event", lambda **facts: events.append(facts))
    monkeypatch.setattr(executor, "Worker", Child)
    monkeypatch.setattr(log_utils, "apply_log_config", log_utils.apply_log_config)  # put back later
    monkeypatch.setenv("CUPOLA_PARTY_FOLDER", ".")
    monkeypatch.setenv("CUPOLA_PARTY_KIND", "site")
    site = executor.CupolaExecutor("study")
    asked = Shareable()
    asked["message"] = b"anything"
    reply = site.execute("cupola", asked, None, Signal())
    assert reply["message"].startswith(b"F")
    assert events[0]["action"] == "cupola.declined"
    assert site.execute("other", asked, None, Signal()).get_return_code() != "OK"
    asked["message"] = {"not": "bytes"}
    assert site.execute("cupola", asked, None, Signal()).get_return_code() != "OK"
    assert len(events) == 1
    # A log configuration can name any callable; none is taken in a job's process.
    called = {"version": 1, "handlers": {"x": {"()": "os.getcwd"}}}
    for config in (called, json.dumps(called)):
        with pytest.raises(ValueError, match="own affair"):
            log_utils.dynamic_log_config(config, ".", ".")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("twin = true", "twin"),
        ("seeds = [1, 2]", "several runs"),
        ('sum = {kind = "masked"}', "roster"),
        ('privacy = {mechanism = "central", noise = 1.0, clip = 1.0}', "seed"),
        ('privacy = {mechanism = "dp-sgd", epsilon = 1.0, clip = 1.0}', "privacy.noise"),
    ],
)
def test_plans_that_real_sites_cannot_run_are_refused(line, said):
    checked(JOB)
    with pytest.raises(PlanError, match=said):
        checked(Job("study", f"{line}\n{PLAN}", JOB.sites))


def test_a_study_and_its_roster_must_agree():
    from cupola.plan.study import for_real_cohorts, load_study
    from cupola.secure.roster import simulated_roster

    cohorts = [{"name": f"site {i}", "bfile": f"secret/{i}"} for i in range(3)]
    given = {"test": "chi-square", "sum": "masked", "fingerprints": True, "salt": "hidden"}
    whole = load_study({**given, "cohorts": cohorts})
    text = for_real_cohorts(whole).to_toml()
    assert "secret" not in text
    assert "hidden" not in text
    roster = simulated_roster(1, "study", 3, compensator=True, minimum=3)[0]
    named = [{"name": party.name} for party in roster.sites]
    study = for_real_cohorts(load_study({**given, "cohorts": named}, elsewhere=True)).to_toml()
    names = [party.name for party in roster.sites]
    job = Job("study", study, names, "third", roster.to_json())
    assert checked(job).fingerprints
    others = study.replace(names[0], "another")
    with pytest.raises(PlanError, match="the same names"):
        checked(Job("study", others, names, "third", roster.to_json()))
    fewer = simulated_roster(1, "study", 3, compensator=True, minimum=2)[0]
    with pytest.raises(PlanError, match="--minimum 3"):
        checked(Job("study", study, names, "third", fewer.to_json()))
    with pytest.raises(PlanError, match="roster"):
        checked(Job("study", study, names))


def _zip(names):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name in names:
            archive.writestr(name, "x")
    return made.getvalue()


@pytest.mark.parametrize(
    "name", ["../plan.toml", "/etc/x", "evil.py", "a/plan.toml", "report.html"]
)
def test_results_hold_known_files_only(tmp_path, name):
    with pytest.raises(CupolaError, match="does not belong"):
        unpack(_zip(["plan.toml", name]), tmp_path / "own", RESULTS)
    assert not (tmp_path / "own").exists()
    with pytest.raises(CupolaError, match="not readable"):
        unpack(b"garbage", tmp_path / "own", RESULTS)


def test_results_travel_as_they_are(tmp_path):
    (tmp_path / "plan.toml").write_bytes(b"text")
    (tmp_path / "secret.key").write_bytes(b"not part of a run")
    unpack(packed(tmp_path), tmp_path / "own")
    assert [p.name for p in (tmp_path / "own").iterdir()] == ["plan.toml"]


def test_too_few_answers_are_waited_for_and_others_are_left_out():
    from cupola.federation import Contribution, Question
    from cupola.federation.message import encode_contribution

    good = b"A" + encode_contribution(Contribution({}))
    asked = []

    def carry(message, parties, timeout):
        del message, timeout
        asked.append(list(parties))
        ready = {"a": good, "b": b"garbage", "c": b"A" + bytes(10**6)}
        return {p: ready[p] if p != "a" or len(asked) > 1 else "late" for p in parties}

    engine = FlareSites(carry, ["a", "b", "c"], needed=3)
    found = dict(engine._ask(Question("t"), [0, 1, 2]))
    assert asked == [["a", "b", "c"], ["a"]]
    assert isinstance(found[0], Contribution)
    assert found[1].broken
    assert found[2].code == "answer is too large"
    never = FlareSites(lambda *_: {"a": "late"}, ["a"], patience=0.01)
    assert dict(never._ask(Question("t"), [0]))[0].code == "late"


def test_refused_certificates_are_audited_and_nothing_said_is_lost(tmp_path):
    program = """
import os, sys, time
from nvflare.fuel.sec.audit import AuditService
from cupola.flare.refusals import audit_refused_certificates
AuditService.initialize(sys.argv[1])
audit_refused_certificates()
os.write(2, b"I1 ssl.cc:25] Handshake failed: CERTIFICATE_VE")
time.sleep(0.1)
os.write(2, b"RIFY_FAILED: unknown issuer\\nI2 all well\\n" + b"." * 200_000)
sys.stderr.write("the last word")
"""
    log = tmp_path / "audit.log"
    call = [sys.executable, "-c", program, str(log)]
    said = subprocess.run(call, capture_output=True, text=True, check=True).stderr
    assert said.startswith("I1 ssl.cc:25]")
    assert said.endswith("...the last word")
    (event,) = log.read_text().splitlines()
    assert event.endswith("[A:cupola.certificate_refused]CERTIFICATE_VERIFY_FAILED: unknown issuer")
