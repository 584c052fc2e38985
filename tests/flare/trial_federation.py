"""A whole federation on one machine, every party in a folder and processes of its own: to try
things out, for tests and for measuring. Real parties are set up one by one (docs/consortium.md)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil  # which nvflare needs, too
import tomli_w

from cupola.analysis.header import PlanHeader
from cupola.analysis.kinds import analysis_of
from cupola.analysis.plan_file import Source, load
from cupola.engines.flare import provision
from cupola.engines.flare.federation_settings import FederationSettings
from cupola.engines.flare.jobs import Job
from cupola.errors import FederationError
from cupola.secure.roster import Roster
from cupola.site import join_compensator, join_site, make_keys
from cupola.site.settings import COMPENSATOR, SITE

_TASKS = ["train", "evaluate", "sparsity", "adapt", "gwas *", "moments"]


class Trial:
    """data: settings of the sites' data sets, by site, as in cupola-site.toml. environments:
    variables that a party's processes have beside those of this one, by party."""

    def __init__(
        self,
        folder: Path,
        settings: FederationSettings,
        data: Mapping[str, Mapping[str, Any]],
        environments: Mapping[str, Mapping[str, str]] | None = None,
        **site_settings: Any,
    ) -> None:
        self.folder, self.settings = folder, settings
        self.environments = environments or {}
        self.folders = provision.trial(settings, folder)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.keys = {}
        for name in settings.sites:
            facts = {"name": name, "tasks": _TASKS, "unmasked_tasks": _TASKS, "data": data[name]}
            text = tomli_w.dumps({**facts, **site_settings})
            (self.folders[name] / SITE).write_text(text)
        if settings.compensator:
            third = self.folders[settings.compensator] / COMPENSATOR
            allowed = {"modules": site_settings.get("modules", [])}
            third.write_text(tomli_w.dumps({"name": settings.compensator, **allowed}))
        for name in (*settings.sites, *([settings.compensator] if settings.compensator else [])):
            self.keys[name] = make_keys(self.folders[name], name).public

    def study(self, name: str, source: Source, data: str | None = None) -> Job:
        """A study that every party has joined. data: the data set that takes part."""
        given: PlanHeader = load(source, elsewhere=True)
        analysis = analysis_of(given)
        plan = analysis.for_real_sites()
        third = self.settings.compensator if plan.sum.protocol == "compensator" else None
        roster = Roster(
            name,
            tuple(self.keys[site] for site in self.settings.sites),
            self.keys[third] if third else None,
            analysis.minimum or len(self.settings.sites),
            changes=analysis.changes,
        )
        written = self.folder / "studies" / name
        written.mkdir(parents=True, exist_ok=True)
        (written / "plan.toml").write_text(plan.to_toml())
        (written / "roster.json").write_text(roster.to_json())
        for site in self.settings.sites:
            join_site(self.folders[site], written / "plan.toml", written / "roster.json", data)
        if third:
            join_compensator(self.folders[third], written / "plan.toml", written / "roster.json")
        sites = list(self.settings.sites)
        return Job(name, plan.to_toml(), sites, third, roster.to_json(), len(sites))

    def start(self, *names: str) -> None:
        """Start parties (default: all but users), each as the head of its own process group."""
        kinds = self.settings.parties
        for name in names or [n for n, kind in kinds.items() if kind != "user"]:
            line = [sys.executable, "-m", "cupola", kinds[name], "start", "-f"]
            with (self.folders[name] / "out.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [*line, str(self.folders[name])],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **self.environments.get(name, {})},
                )

    def kill(self, *names: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to parties with all that they started."""
        for name in names:
            for process in self.started_by(name):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(number)
            if number == signal.SIGKILL:
                self.processes.pop(name).wait()

    def started_by(self, name: str) -> list[psutil.Process]:
        """A party's process and all below it; jobs are in sessions of their own."""
        try:
            first = psutil.Process(self.processes[name].pid)
            return [first, *first.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def wait_until_connected(self, names: Iterable[str] | None = None, timeout: float = 90) -> None:
        """Until the coordinator says of these parties (default: all) that they are there."""
        from cupola.engines.flare.submit import Follower

        lead = next(user for user, role in self.settings.users.items() if role == "lead")
        wanted = set(self.keys if names is None else names)
        asks = Follower(Job("", "", []), self.folders[lead], lambda _: None, timeout)
        deadline, missing = time.monotonic() + timeout, wanted
        try:
            while missing and time.monotonic() < deadline:
                info = asks.call("get_system_info")
                missing = wanted - {client.name for client in info.client_info}
                time.sleep(0.2)
        finally:
            asks.close()
        if missing:
            raise FederationError(f"not there after {timeout:g} s: {', '.join(sorted(missing))}")

    def close(self) -> None:
        self.kill(*list(self.processes))

    def __enter__(self) -> Trial:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
