"""Over FLARE: every party killed once, and what is refused."""

from __future__ import annotations

import contextlib
import resource
import shutil
import signal
import socket
import ssl
import time

import psutil
import pytest
from hospitals import LEAD, MEMBER, SITES
from test_end_to_end import difference, history, run_real, run_simulated

from cupola.base.files import write_atomically
from cupola.engines.flare import jobs, provision, refusals
from cupola.engines.flare.submit import Follower, submit
from cupola.errors import FederationError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


_HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # how it begins


def audit(trial, party):
    """All of a party's audit logs, those of jobs included."""
    return "".join(p.read_text() for p in (trial.folders[party] / "kit").rglob("audit*"))


def test_a_user_without_the_right_hands_nothing_in(trial):
    with pytest.raises(FederationError, match=f"{MEMBER} may not do this"):
        submit(trial.jobs["code"], trial.folders[MEMBER], patience=30)
    found = [line for line in audit(trial, "localhost").splitlines() if refusals.COMMAND in line]
    assert any(f"[U:{MEMBER}]" in line and "submit_job" in line for line in found)


@pytest.mark.parametrize("name", [LEAD, "mallory@hospital-z.org"])
def test_who_is_not_whom_they_say_is_refused_and_audited(trial, tmp_path, name):
    """With a certificate of the federation, but of somebody else: a hospital's."""
    own = tmp_path / "own"
    shutil.copytree(trial.folders[LEAD], own)
    for file in ("client.crt", "client.key"):
        shutil.copy(trial.folders["hospital-a"] / "kit/startup" / file, own / "kit/startup" / file)
    for path in (own / "invitation.toml", own / "kit/startup/fed_admin.json"):
        path.write_text(path.read_text().replace(LEAD, name))
    with pytest.raises(FederationError, match=rf"{name} may not do this|cannot be reached"):
        submit(trial.jobs["code"], own, patience=5)
    found = [line for line in audit(trial, "localhost").splitlines() if refusals.USER in line]
    assert any(f"[U:{name}]" in line for line in found)


def knock(trial, kit):
    """What the coordinator says to somebody with the certificate of a kit; nothing if it hangs
    up."""
    right = ssl.create_default_context(cafile=trial.folders[LEAD] / "kit/startup/rootCA.pem")
    right.load_cert_chain(kit / "client.crt", kit / "client.key")
    right.set_alpn_protocols(["h2"])
    host, port = trial.settings.host, trial.settings.port
    with socket.create_connection((host, port), 30) as plain:
        try:
            with right.wrap_socket(plain, server_hostname=host) as line:
                line.sendall(_HTTP2)
                return line.recv(100)
        except (ssl.SSLError, ConnectionError):
            return b""


def test_a_certificate_of_another_authority_is_refused(trial, tmp_path):
    other = trial.settings.model_copy(update={"sites": SITES[:1], "users": {LEAD: "lead"}})
    invitation = next(p for p in provision.init(other, tmp_path / "other") if p.stem == LEAD)
    own = tmp_path / "own"
    asked = provision.request(invitation, own)
    provision.install(provision.approve(asked, tmp_path / "other"), own)
    with pytest.raises(FederationError, match="cannot be reached"):
        submit(trial.jobs["code"], own, patience=5)
    # One that takes the coordinator for who it is is refused by the coordinator, which says so.
    assert knock(trial, trial.folders[LEAD] / "kit" / "startup") != b""
    assert knock(trial, own / "kit" / "startup") == b""
    for _ in range(100):
        if refusals.CERTIFICATE in audit(trial, "localhost"):
            break
        time.sleep(0.1)
    else:
        pytest.fail("the coordinator's audit log does not name the refusal")
    log = trial.folders["localhost"] / "out.log"
    assert "CERTIFICATE_VERIFY_FAILED" in log.read_text(errors="replace")
    # The right authority does not sign for somebody it did not invite.
    stranger = tmp_path / "stranger@hospital-z.org.toml"
    stranger.write_text(invitation.read_text().replace(LEAD, "stranger@hospital-z.org"))
    asked = provision.request(stranger, tmp_path / "stranger")
    with pytest.raises(FederationError, match="is not in this federation"):
        provision.approve(asked, trial.folder / "organiser")
    assert "refused: " in (log := (trial.folder / "organiser" / "audit.log").read_text())
    assert "'stranger@hospital-z.org' is not in this federation" in log
    # Nor more rights than were promised.
    more = tmp_path / "more.toml"
    more.write_text(
        invitation.read_text().replace(LEAD, MEMBER)  # whose invitation says 'member'
    )
    asked = provision.request(more, tmp_path / "more")
    with pytest.raises(FederationError, match="asks for the rights of 'lead'"):
        provision.approve(asked, trial.folder / "organiser")


def test_a_job_that_carries_code_is_refused_and_audited(trial, tmp_path):
    written = jobs.write(trial.jobs["code"], tmp_path / "job")
    (written / "site" / "custom").mkdir()
    (written / "site" / "custom" / "evil.py").write_text("print('here')")
    lead = Follower(trial.jobs["code"], trial.folders[LEAD], lambda _: None, 30)
    try:
        with pytest.raises(FederationError, match=r"BYOC|nothing else|refused|not permitted"):
            lead._watch(str(lead.call("submit_job", str(written))))
    finally:
        lead.close()
    shutil.rmtree(written)
    assert all("cupola.job_refused" in audit(trial, party) for party in SITES)


class Faults:
    """One after the other, each as soon as the coordinator has seen the last."""

    def __init__(self, trial):
        self.trial, self.seen = trial, []
        self.settings = trial.folders["hospital-b"] / "cupola-site.toml"
        self.text = self.settings.read_text()
        self.next = self.freeze

    def __call__(self, told):
        if told.get("record"):
            self.next(told, told["record"])

    def freeze(self, *_):
        self.trial.kill("hospital-c", number=signal.SIGSTOP)
        self.next = self.thaw

    def thaw(self, told, record):
        if "hospital-c" in told["away"] and "late" in record["failed"]:
            self.trial.kill("hospital-c", number=signal.SIGCONT)
            self.seen.append("frozen")
            self.next = self.forbid

    def forbid(self, told, record):
        if record["sites"] == 3 and not told["away"]:
            self.seen.append("back")
            write_atomically(self.settings, self.text.replace('"train",', ""))
            self.next = self.allow

    def allow(self, _, record):
        if "this site does not run this task" in record["failed"]:
            self.seen.append("declined")
            write_atomically(self.settings, self.text)
            self.next = self.crash

    def crash(self, _, record):
        """What computes a site's answers dies, as by a lack of memory."""
        if record["sites"] == 3:
            self.seen.append("allowed")
            self.crashed = self.computing("hospital-b")
            for process in self.crashed:
                process.kill()
            self.next = self.recover

    def recover(self, _, record):
        now = self.computing("hospital-b")
        if record["sites"] == 3 and now and not set(now) & set(self.crashed):
            self.seen.append("crashed")
            self.next = self.fill

    def fill(self, *_):
        """No file of two sites can grow any more."""
        for site in ("hospital-b", "hospital-c"):
            for process in self.computing(site):
                process.rlimit(psutil.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        self.next = lambda *_: None

    def computing(self, site):
        """The processes that compute a site's answers."""
        found = []
        for process in self.trial.started_by(site):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any("child_process import main" in part for part in process.cmdline()):
                    found.append(process)
        return found


def test_a_frozen_site_a_task_not_allowed_and_full_disks(trial):
    faults = Faults(trial)
    try:
        end, packed = submit(trial.jobs["faulty"], trial.folders[LEAD], faults, patience=120)
    finally:
        trial.kill("hospital-c", number=signal.SIGCONT)
        faults.settings.write_text(faults.text)
    assert faults.seen == ["frozen", "back", "declined", "allowed", "crashed"]
    assert end["state"] == "failed"
    assert "its disk is full" in end["reason"]
    assert packed
    declined = [line for line in audit(trial, "hospital-b").splitlines() if "declined" in line]
    assert any("this site does not run this task" in line for line in declined)


def test_compensator_and_coordinator_are_killed_and_the_study_ends_as_if_not(trial, tmp_path):
    """A site is killed in test_association_study."""
    left = {3: "university", 8: "localhost"}

    def tell(told):
        for round in [r for r in left if told.get("done", 0) >= r]:
            party = left.pop(round)
            trial.kill(party)
            trial.start(party)

    real = run_real(trial, "killed", tmp_path, tell)
    assert not left
    assert difference(real, run_simulated("killed", tmp_path)) < 1e-6
    records = history(real)
    assert [r["round"] for r in records] == list(range(1, 15))
    assert all(r["sites"] == 3 for r in records)
