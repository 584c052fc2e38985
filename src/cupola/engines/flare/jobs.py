"""Jobs: JSON that we write. A job names a study, and to the coordinator it brings a plan; it
carries no code, no path, and nothing that a site would act on but the study's name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cupola.engines.flare.policy import CONTROLLER, EXECUTOR

HELLO, ASK, RESULTS = "cupola hello", "cupola", "cupola results"  # FLARE's names of our tasks
MARKS = {HELLO: b"H", ASK: b"Q", RESULTS: b"Z"}  # and how their bytes are told apart on a pipe
PROGRESS, RUN = "cupola.progress", "cupola"  # a command to a running job; its folder of results
FOLDER, KIND = "CUPOLA_PARTY_FOLDER", "CUPOLA_PARTY_KIND"  # what a party's processes are told
COORDINATOR_FILE = "config/config_fed_server.json"
SITE_FILE = "config/config_fed_client.json"
REQUEST_INTERVAL = 0.05  # seconds between a site's requests for a task


@dataclass(frozen=True)
class Job:
    """A study to run. plan: its TOML text. sites: in the order that the roster gives them.
    roster: JSON, where sums are masked. minimum: sites without which it does not begin."""

    study: str
    plan: str
    sites: list[str]
    compensator: str | None = None
    roster: str | None = None
    minimum: int = 1

    @classmethod
    def of(cls, plan: str, roster: str) -> Job:
        """A plan for the parties of a roster, every site of which it takes to begin."""
        from cupola.secure.roster import Roster

        agreed = Roster.from_json(roster)
        third = agreed.compensator.name if agreed.compensator else None
        names = [party.name for party in agreed.sites]
        return cls(agreed.study, plan, names, third, roster, len(names))


def write(job: Job, folder: Path) -> Path:
    """A job's folder, as FLARE takes it."""
    parties = [*job.sites, *([job.compensator] if job.compensator else [])]
    meta = {
        "name": job.study,
        "resource_spec": {},
        "min_clients": job.minimum + (1 if job.compensator else 0),
        "mandatory_clients": [job.compensator] if job.compensator else [],
        "deploy_map": {"coordinator": ["server"], "site": parties},
    }
    files = {
        "meta.json": meta,
        f"coordinator/{COORDINATOR_FILE}": _coordinator(asdict(job)),
        f"site/{SITE_FILE}": _site(job.study),
    }
    for name, facts in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts, indent=1))
    return folder


def expected_for(file: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """What the file would be if Cupola wrote it for the study it names."""
    if file == SITE_FILE:
        study = found["executors"][0]["executor"]["args"]["study"]
        return _site(study) if isinstance(study, str) else {}
    job = Job(**found["workflows"][0]["args"])
    return _coordinator(asdict(job)) if _is_well_typed(job) else {}


def _is_well_typed(job: Job) -> bool:
    if not isinstance(job.sites, list) or type(job.minimum) is not int:
        return False
    given = [text for text in (job.compensator, job.roster) if text is not None]
    return all(isinstance(text, str) for text in (job.study, job.plan, *job.sites, *given))


def _site(study: str) -> dict[str, Any]:
    return {
        "format_version": 2,
        "executors": [
            {
                "tasks": [HELLO, ASK, RESULTS],
                "executor": {"path": EXECUTOR, "args": {"study": study}},
            }
        ],
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "job_heartbeat_interval": 2.0,
        "end_run_readiness_timeout": 2.0,
    }


def _coordinator(arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "format_version": 2,
        "server": {"heart_beat_timeout": 600, "task_request_interval": REQUEST_INTERVAL},
        "task_data_filters": [],
        "task_result_filters": [],
        "components": [],
        "workflows": [{"id": "cupola", "path": CONTROLLER, "args": arguments}],
        "dead_client_grace_period": 3600.0,  # we drop and take back sites ourselves
        "end_run_readiness_timeout": 2.0,
    }
