"""What a party takes and what it refuses, without FLARE's processes."""

from __future__ import annotations

import importlib
import io
import json
import logging
import subprocess
import sys
import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path

import nvflare
import pytest

from cupola.analysis.plan_file import load
from cupola.analysis.run_folder import contents
from cupola.engines.flare import policy
from cupola.engines.flare.announce import JobIsOver
from cupola.engines.flare.engine import FlareSites
from cupola.engines.flare.federation_settings import FederationSettings
from cupola.engines.flare.jobs import COORDINATOR_FILE, SITE_FILE, Job, write
from cupola.errors import CupolaError, PlanError
from cupola.site.coordinator import (
    allowed_modules,
    carry_out,
    checked,
    handed_out,
    own_run,
    packed,
    public,
    unpack,
)
from cupola.training.build import with_public_data

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

    from cupola.engines.flare.validator import JobValidator

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


@pytest.mark.parametrize(
    "given",
    [{"evil": 1}, {"study": 1}, {"plan": None}, {"sites": "a"}, {"sites": [1]}, {"minimum": "1"},
     {"roster": ["x"]}, {"compensator": {}}],
)  # fmt: skip
def test_a_coordinators_job_has_known_arguments_only(validator, given):
    judge, job, _ = validator
    _change(
        job / "coordinator" / COORDINATOR_FILE, lambda f: f["workflows"][0]["args"].update(given)
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


@pytest.mark.parametrize("kind", ["coordinator", "site"])
def test_a_kit_of_an_earlier_version_finds_the_classes_where_they_are_now(tmp_path, kind):
    policy.write(tmp_path, kind, tmp_path)
    path = tmp_path / "resources.json"
    now = path.read_text()
    path.write_text(now.replace("cupola.engines.flare.", "cupola.flare."))
    policy.renew(tmp_path)
    assert path.read_text() == now


def test_what_a_site_declines_is_audited(monkeypatch):
    pytest.importorskip("nvflare")
    from nvflare.apis.shareable import Shareable
    from nvflare.apis.signal import Signal
    from nvflare.fuel.sec.audit import AuditService
    from nvflare.fuel.utils import log_utils

    from cupola.engines.flare import executor

    class Child:
        def __init__(self, *_):
            pass

        def ask(self, message, stopped):
            del stopped
            return b"Fthis site does not run this task" if message[:1] == b"Q" else b"A"

    events = []
    monkeypatch.setattr(AuditService, "add_event", lambda **facts: events.append(facts))
    monkeypatch.setattr(executor, "ChildProcess", Child)
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
    # A log configuration can name any callable; none is taken in a job's process. (FLARE itself
    # takes none either: the next test.)
    called = {"version": 1, "handlers": {"x": {"()": "os.getcwd"}}}
    for config in (called, json.dumps(called)):
        with pytest.raises(ValueError, match="own affair"):
            log_utils.dynamic_log_config(config, ".", ".")


def test_flare_takes_no_log_configuration_that_names_code(tmp_path):
    """From a job's first moment on: its commands are there before Cupola's class is."""
    pytest.importorskip("nvflare")
    from types import SimpleNamespace

    from nvflare.private.fed.client.admin_commands import ConfigureJobLogCommand as AtSite
    from nvflare.private.fed.server.server_commands import ConfigureJobLogCommand as AtCoordinator

    made = tmp_path / "made"
    config = {"version": 1, "handlers": {"x": {"()": "os.mkdir", "path": str(made)}}}
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config))
    own = SimpleNamespace(get_run_dir=lambda _: "", get_log_config_file_path=lambda: "")
    engine = SimpleNamespace(get_workspace=lambda: own)
    context = SimpleNamespace(get_engine=lambda: engine, get_job_id=lambda: "x")
    for command in (AtSite, AtCoordinator):
        for given in (config, json.dumps(config), str(file)):
            assert "only supports log levels" in command().process(given, context)
    assert not made.exists()


@pytest.fixture
def admin(monkeypatch):
    """FLARE's register of commands, with the users whom it knows, and the audit log."""
    pytest.importorskip("nvflare")
    from nvflare.fuel.hci.conn import Connection
    from nvflare.fuel.hci.proto import MetaStatusValue, make_meta
    from nvflare.fuel.hci.reg import CommandModule, CommandModuleSpec, CommandSpec
    from nvflare.fuel.hci.server.constants import ConnProps
    from nvflare.fuel.hci.server.reg import CommandFilter, ServerCommandRegister
    from nvflare.fuel.sec.audit import AuditService

    from cupola.engines.flare import refusals

    class Module(CommandModule):
        def get_spec(self):
            login = CommandSpec("_cert_login", "", "", self.login)
            return CommandModuleSpec("m", [login, CommandSpec("submit_job", "", "", self.done)])

        def login(self, conn, args):
            conn.append_token("x") if args[1] == LEAD else conn.append_string("REJECT")

        def done(self, conn, args):
            del args
            conn.append_success("")

    class Rights(CommandFilter):
        def pre_command(self, conn, args):
            user = conn.get_prop(ConnProps.USER_NAME)
            if args[0] == "_cert_login" or user == LEAD:
                return True
            said = make_meta(MetaStatusValue.NOT_AUTHORIZED, "no") if user else None
            conn.append_error("no", meta=said)
            return False

    events = []
    monkeypatch.setattr(AuditService, "add_event", lambda **facts: events.append(facts))
    monkeypatch.setattr(
        ServerCommandRegister, "process_command", ServerCommandRegister.process_command
    )
    refusals.audit_refused_commands()
    refusals.audit_refused_commands()  # each is written down once
    register = ServerCommandRegister(None)
    register.add_filter(Rights())
    register.register_module(Module())
    register.finalize()

    def ask(command, user=None):
        conn = Connection(props={ConnProps.USER_NAME: user} if user else {})
        register.process_command(conn, command)
        found = [(e["user"], e["action"], e["msg"]) for e in events]
        events.clear()
        return found

    return ask


def test_refused_users_and_commands_are_audited(admin):
    assert admin(f"_cert_login {LEAD}") == []
    assert admin("submit_job x", LEAD) == []
    refused = "mallory@hospital-z.org"
    assert admin(f"_cert_login {refused}") == [(refused, "cupola.user_refused", "")]
    assert admin("_cert_login") == [("", "cupola.user_refused", "")]
    bob = "bob@hospital-b.org"
    assert admin("submit_job x", bob) == [(bob, "cupola.command_refused", "submit_job x")]
    assert admin("submit_job x") == [("", "cupola.user_refused", "submit_job x")]
    ((_, _, text),) = admin("submit_job x\n[E:1][U:alice]" + "y" * 1000, bob)
    assert "\n" not in text
    assert len(text) <= 200


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("twin = true", "twin"),
        ("seeds = [1, 2]", "several runs"),
        ('sum = {kind = "masked"}', "roster"),
        ('privacy = {mechanism = "central", noise_multiplier = 1.0, clip = 1.0}', "seed"),
        ('privacy = {mechanism = "dp-sgd", epsilon = 1.0, clip = 1.0}', "privacy.noise_multiplier"),
    ],
)
def test_plans_that_real_sites_cannot_run_are_refused(line, said):
    checked(JOB)
    with pytest.raises(PlanError, match=said):
        checked(Job("study", f"{line}\n{PLAN}", JOB.sites))


def test_a_plan_runs_no_code_at_the_coordinator(tmp_path):
    """Whoever hands a plan in has no say in what runs there, or is read."""
    made = tmp_path / "made"
    code = f'model = {{name = "os:mkdir", path = "{made}"}}'
    job = replace(JOB, plan=PLAN.replace('model = {name = "linear"}', code))
    told = []
    with pytest.raises(PlanError, match="names code, 'os:mkdir'"):
        carry_out(job, None, tmp_path, told.append)
    assert not made.exists()
    assert not told
    (tmp_path / "cupola-coordinator.toml").write_text('modules = ["another"]')
    with pytest.raises(PlanError, match="names code"):
        carry_out(job, None, tmp_path, told.append)
    (tmp_path / "cupola-coordinator.toml").write_text("modules = 1")
    with pytest.raises(PlanError, match="list of names"):
        allowed_modules(tmp_path)
    (tmp_path / "cupola-coordinator.toml").write_text('modules = ["os"]')
    assert allowed_modules(tmp_path) == ["os"]


@pytest.mark.parametrize(
    ("name", "key"),
    [("csv", "path"), ("npz", "path"), ("image_folder", "folder"), ("npy", "folder")],
)
def test_data_at_the_coordinator_come_from_its_public_folder(tmp_path, name, key):
    given = {"name": name, key: "/etc/passwd", "partition": {"kind": "iid", "sites": 3}}
    if name == "csv":
        given["target"] = "x"
    plan = load({"name": "t", "rounds": 1, "data": given, "model": {"name": "linear"}})
    moved = with_public_data(plan, partial(public, tmp_path))
    assert moved.data.options[key] == str(tmp_path / "public/passwd")


def test_a_study_and_its_roster_must_agree():
    from cupola.association.plan import StudyPlan, for_real_cohorts
    from cupola.secure.roster import simulated_roster

    cohorts = [{"name": f"site {i}", "bfile": f"secret/{i}"} for i in range(3)]
    given = {"test": "chi-square", "sum": "masked", "fingerprints": True, "salt": "hidden"}
    whole = load({**given, "cohorts": cohorts}, of=StudyPlan)
    text = for_real_cohorts(whole).to_toml()
    assert "secret" not in text
    assert "hidden" not in text
    roster = simulated_roster(1, "study", 3, compensator=True, minimum=3)[0]
    named = [{"name": party.name} for party in roster.sites]
    study = for_real_cohorts(
        load({**given, "cohorts": named}, elsewhere=True, of=StudyPlan)
    ).to_toml()
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


HANDED_OUT = handed_out(load(PLAN))


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
        unpack(_zip(["plan.toml", name]), tmp_path / "own", HANDED_OUT)
    assert not (tmp_path / "own").exists()
    with pytest.raises(CupolaError, match="not readable"):
        unpack(b"garbage", tmp_path / "own", HANDED_OUT)


def test_results_that_are_damaged_or_locked_are_refused(tmp_path):
    whole = bytearray(_zip(["plan.toml"]))
    for place, value in ((6, 1), (8, 99)):  # under a password; compressed in an unknown way
        changed = bytearray(whole)
        central = whole.index(b"PK\x01\x02")
        changed[place], changed[central + place + 2] = value, value
        with pytest.raises(CupolaError, match="not readable"):
            unpack(bytes(changed), tmp_path / "own", HANDED_OUT)


def test_results_come_into_the_folder_of_a_study_that_was_joined(tmp_path):
    from cupola.site import make_keys, study_folder
    from cupola.site.party_process import open_party
    from cupola.site.proposal import read_proposal

    make_keys(tmp_path, "clinic")
    settings = tmp_path / "cupola-site.toml"
    settings.write_text('name = "clinic"\n')
    for _ in range(2):  # the first time there is no folder of the study yet
        party = open_party(str(tmp_path), "site", "study")
        assert party.answer(b"Z" + _zip(["plan.toml"])) == b"Fthis study was not joined here"
        assert party.answer(b"?") == b"Bmessage is not well formed"
        party._answering.close()
        if party._lock is not None:
            party._lock.close()
    assert not (tmp_path / "results").exists()
    place = study_folder(tmp_path, "study")
    (place / "plan.toml").write_text(PLAN)
    hashes = f'plan = "{read_proposal(PLAN).digest}"\nroster = "{"0" * 64}"\n'
    settings.write_text(f'name = "clinic"\n[studies.study]\n{hashes}')
    assert party.answer(b"Z" + _zip(["plan.toml"])) == b"A"
    assert (tmp_path / "results" / "study" / "plan.toml").read_text() == "x"


def test_a_plan_that_comes_with_results_loads_no_code(tmp_path, monkeypatch):
    from cupola.site.party_process import _report

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "chosen.py").write_text("open('loaded', 'w')")
    monkeypatch.chdir(tmp_path)
    results = tmp_path / "results"
    results.mkdir()
    (results / "plan.toml").write_text('kind = "chosen:Code"\nname = "x"\n')
    _report(results, load(PLAN))
    assert (results / "report.html").exists()
    assert not (tmp_path / "loaded").exists()


def test_a_run_is_handed_out_to_who_hands_in_its_plan(tmp_path):
    held = tmp_path / "runs" / "study"
    held.mkdir(parents=True)
    assert own_run(tmp_path, JOB) is None
    (held / "plan.toml").write_text(load(PLAN).to_toml())
    assert own_run(tmp_path, JOB) == held
    assert own_run(tmp_path, replace(JOB, plan=PLAN.replace("rounds = 1", "rounds = 2"))) is None
    assert own_run(tmp_path, replace(JOB, plan="no plan")) is None
    (tmp_path / "plan.toml").write_text(load(PLAN).to_toml())
    for elsewhere in ("..", "../..", str(tmp_path), "../runs/study", ""):
        assert own_run(tmp_path, replace(JOB, study=elsewhere)) is None


def test_results_travel_as_they_are(tmp_path):
    (tmp_path / "plan.toml").write_text(load(PLAN).to_toml())
    (tmp_path / "secret.key").write_bytes(b"not part of a run")
    unpack(packed(tmp_path), tmp_path / "own", contents(load(PLAN)))
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
    found = dict(engine.ask(Question("t"), [0, 1, 2]))
    assert asked == [["a", "b", "c"], ["a"]]
    assert isinstance(found[0], Contribution)
    assert found[1].broken
    assert found[2].code == "answer is too large"
    never = FlareSites(lambda *_: {"a": "late"}, ["a"], patience=0.01)
    assert dict(never.ask(Question("t"), [0]))[0].code == "late"


def test_refused_certificates_are_audited_and_nothing_said_is_lost(tmp_path):
    program = """
import os, sys, time
from nvflare.fuel.sec.audit import AuditService
from cupola.engines.flare.refusals import audit_refused_certificates
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


def test_a_coordinators_log_ends_quietly_and_tells_what_is_wrong():
    job = "server.f59e0153-38ff-4daf-aebf-8f5de9df8e96"
    quiet = [
        f"[ME=server D=server.:9df8e96] no connection to child {job}",
        f"[ME=server] cannot send to '{job}': target_unreachable",
        "notified SJ of dead-job: job_id='a'; client_name='b'; reason='missing job on client'",
        "no app command func for topic cupola.progress",
        "#### MPM: still running thread kernel_0",
    ]
    loud = [
        "cannot send to 'hospital-a': target_unreachable",
        "#### MPM: still running thread other",
        f"cannot send to '{job}': timeout",
        "notified SJ of dead-job: job_id='a'; client_name='b'; reason='client dead'",
    ]
    told = [logging.LogRecord("CoreCell", 40, "", 1, "%s", (line,), None) for line in quiet + loud]
    assert [bool(JobIsOver().filter(record)) for record in told] == [False] * 5 + [True] * 4


def test_a_kit_of_an_earlier_version_logs_as_this_one_does(tmp_path):
    flares = Path(nvflare.__file__).parent / "fuel" / "utils" / "log_config.json"
    (tmp_path / "log_config.json.default").write_bytes(flares.read_bytes())
    (tmp_path / "log_config.json").write_text("{}")
    policy.renew(tmp_path)
    policy.renew(tmp_path)  # once more changes nothing
    config = json.loads((tmp_path / "log_config.json").read_text())
    assert config["loggers"]["root"]["level"] == "WARNING"
    for handler in config["handlers"].values():
        assert handler["filters"].count("cupola") == 1
    module, _, name = config["filters"]["cupola"]["()"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is JobIsOver
