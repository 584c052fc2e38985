"""Submit a plan as a FLARE job and follow it.

FLARE neither resumes a job that was killed nor lets a restarted site rejoin. Here such a job is
submitted again, and goes on from the coordinator's checkpoint.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from cupola.engines.flare import jobs
from cupola.engines.flare.provision import KIT, party
from cupola.errors import FederationError

POLL = 0.5
LOST = 10.0  # seconds after which a job that the coordinator does not know is given up
REJOIN_EVERY = 2.0  # seconds between looks at sites that are away
_UNDER_WAY = ("SUBMITTED", "APPROVED", "DISPATCHED", "RUNNING")
Tell = Callable[[dict[str, Any]], None]


def submit(
    job: jobs.Job,
    user: Path,
    tell: Tell | None = None,
    *,
    patience: float = 300.0,
    attempts: int = 10,
) -> tuple[dict[str, Any], bytes]:
    """Run a study; gives how it ended, and its run folder as a zip.

    user: the folder of somebody who may hand plans in. tell: called with the progress that the
    coordinator reports. patience: seconds to wait for a coordinator that cannot be reached.
    attempts: how often a killed job is handed in again.
    """
    with contextlib.closing(Follower(job, user, tell or (lambda _: None), patience)) as follow:
        for attempt in range(attempts):
            ended = follow.once(first=attempt == 0)
            if ended is not None:
                return ended
    raise FederationError(
        f"the job of study '{job.study}' ended {attempts} times before its plan did; look at the "
        "coordinator's log, then resume with the same command"
    )


def stop(job: jobs.Job, user: Path, patience: float = 60.0) -> None:
    """End the study's job, if it runs; the coordinator keeps what was reached, and handing the
    study in again goes on from there."""
    with contextlib.closing(Follower(job, user, lambda _: None, patience)) as follow:
        for found in follow.call("list_jobs") or []:
            if found.get("job_name") == job.study and found.get("status") in _UNDER_WAY:
                follow.call("abort_job", str(found["job_id"]))
                follow.wait_until_gone(str(found["job_id"]))


class Follower:
    """A study's job as its submitter sees it. patience: seconds that a coordinator may be away."""

    def __init__(self, job: jobs.Job, user: Path, tell: Tell, patience: float) -> None:
        self.job, self.user, self.tell, self.patience = job, user, tell, patience
        self.name = party(user, "user").name
        self._session: Any = None

    def once(self, first: bool) -> tuple[dict[str, Any], bytes] | None:
        """One job, to its end; None if it was not the plan's."""
        job_id = self._running() or self._hand_in(first)
        if not self._watch(job_id):
            return None
        return self._fetch(job_id)

    def _running(self) -> str | None:
        """The study's job that is under way, if somebody handed it in before."""
        for found in self.call("list_jobs") or []:
            if found.get("job_name") == self.job.study and found.get("status") == "RUNNING":
                job_id = str(found["job_id"])
                if self._progress(job_id) is not None:
                    return job_id
        return None

    def _hand_in(self, first: bool) -> str:
        job = self.job if first else replace(self.job, minimum=self._connected())
        with tempfile.TemporaryDirectory() as scratch:
            written = jobs.write(job, Path(scratch) / "job")
            return str(self.call("submit_job", str(written)))

    def _connected(self) -> int:
        """How many sites there are now, after some time to come back."""
        for _ in range(20):
            info = self.call("get_system_info")
            there = {client.name for client in info.client_info}
            found = len(there & set(self.job.sites))
            if found == len(self.job.sites):
                break
            time.sleep(1.0)
        return max(found, self.job.minimum)

    def _watch(self, job_id: str) -> bool:
        """Until the job has ended; False if it is gone, or was stopped for a site to rejoin."""
        looked, lost = time.monotonic(), 0.0
        while True:
            status = str(self.call("get_job_meta", job_id)["status"])
            if status.startswith("FINISHED") or status in ("ABORTED", "ABANDONED", "FAILED"):
                if status.startswith("FINISHED:") and status.endswith(("COMPLETED", "ABORTED")):
                    return True
                self._refused(job_id, status)
                return True
            told: dict[str, Any] | None = {"state": "waiting"}
            if status == "RUNNING":
                told = self._progress(job_id)
            if told is None:
                lost = lost or time.monotonic()
                if time.monotonic() - lost > LOST:
                    return False  # the coordinator forgot it: it was killed
            else:
                lost = 0.0
                self.tell(told)
                if told.get("away") and time.monotonic() - looked > REJOIN_EVERY:
                    looked = time.monotonic()
                    if self._has_returned(job_id, told["away"]):
                        self.call("abort_job", job_id)
                        self.wait_until_gone(job_id)
                        return False
            time.sleep(POLL)

    def _refused(self, job_id: str, status: str) -> None:
        """Raise what was said if the job was never run at all."""
        if status.endswith(("FAILED_TO_RUN", "CANT_SCHEDULE")):
            meta = self.call("get_job_meta", job_id)
            said = [s for s in meta.get("job_deploy_detail", []) if not str(s).endswith(": OK")]
            said = said or meta.get("schedule_history", [])[-1:]
            raise FederationError("the job was refused: " + ("; ".join(map(str, said)) or status))

    def _has_returned(self, job_id: str, away: list[str]) -> bool:
        """Whether a site that gives no answer is there, but has no part in the job."""
        there = {client.name for client in self.call("get_system_info").client_info}
        returned = [name for name in away if name in there]
        if not returned:
            return False
        statuses = self.call("get_client_job_status", returned) or []
        working = {s.get("client_name") for s in statuses if s.get("job_id") == job_id}
        idle = {s.get("client_name") for s in statuses if s.get("status") == "no_jobs"}
        idle |= {s.get("client_name") for s in statuses if s.get("job_id")}
        return any(name in idle - working for name in returned)

    def wait_until_gone(self, job_id: str) -> None:
        for _ in range(60):
            if str(self.call("get_job_meta", job_id)["status"]).startswith("FINISHED"):
                return
            time.sleep(POLL)

    def _progress(self, job_id: str) -> dict[str, Any] | None:
        """What a running job says of itself; nothing while it is busy, None if there is none."""
        from nvflare.fuel.flare_api import api_spec as says

        try:
            with _silent():
                return dict(self._connect().do_app_command(job_id, jobs.PROGRESS, {}))
        except says.JobNotRunning:
            return None
        except (says.NoReply, says.InternalError):
            return {}
        except (says.NoConnection, says.SessionClosed, says.SessionExpired, RuntimeError):
            self.close()
            return {}

    def _fetch(self, job_id: str) -> tuple[dict[str, Any], bytes] | None:
        place = self.call("download_job_result", job_id)
        try:
            ends = list(Path(place).rglob(f"{jobs.RUN}/end.json"))
            if not ends:
                return None
            end = json.loads(ends[0].read_text())
            if end["state"] == "stopped":
                return None
            run = ends[0].with_name("run.zip")
            return end, run.read_bytes() if run.exists() else b""
        finally:
            shutil.rmtree(place, ignore_errors=True)

    def call(self, method: str, *arguments: Any) -> Any:
        """A call to the coordinator, which may be away for a while."""
        from nvflare.apis.fl_exception import FLCommunicationError
        from nvflare.fuel.flare_api import api_spec as says

        deadline = time.monotonic() + self.patience
        while True:
            try:
                with _silent():
                    return getattr(self._connect(), method)(*arguments)
            except (says.AuthorizationError, says.AuthenticationError) as error:
                raise FederationError(f"{self.name} may not do this: {error}") from None
            except (says.JobNotRunning, says.InvalidJobDefinition) as error:
                raise FederationError(str(error)) from None
            except (
                says.NoConnection,
                says.SessionClosed,
                says.SessionExpired,
                says.NoReply,
                says.InternalError,
                FLCommunicationError,  # it lets nobody of this name in with this certificate
                ConnectionError,
                RuntimeError,
            ) as error:
                self.close()
                if time.monotonic() > deadline:
                    text = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise FederationError(f"the coordinator cannot be reached: {text}") from None
                time.sleep(2.0)

    def _connect(self) -> Any:
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        if self._session is None:
            kit = str((self.user / KIT).resolve())
            self._session = new_secure_session(self.name, kit, timeout=10.0)
        return self._session

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            with contextlib.suppress(Exception), _silent():
                session.close()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """FLARE talks to stdout, which belongs to our own results."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
