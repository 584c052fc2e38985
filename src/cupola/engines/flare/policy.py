"""Site policy: what a party lets FLARE do. Only Cupola's own classes run, jobs are configuration
and nothing else, and there is no shell and no log stream. It is written into the kit's 'local'
folder, which stays with the party."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cupola.base.files import write_atomically
from cupola.engines.flare.announce import quiet

EXECUTOR = "cupola.engines.flare.executor.CupolaExecutor"
CONTROLLER = "cupola.engines.flare.controller.CupolaController"
VALIDATOR = "cupola.engines.flare.validator.JobValidator"
_CLASSES = (EXECUTOR, CONTROLLER, VALIDATOR)

_NOTHING = {
    "clone_job": "none",
    "byoc": "none",
    "shell_commands": "none",
    "server-predeployed-flwr": "none",
    "configure_job_log": "none",  # it can name code (see `logging_lock`)
    "configure_site_log": "none",
}
#: Nobody may bring code or run shell commands, whatever the role. A lead hands jobs in; a member
#: looks on. Roles that Cupola does not give have no rights at all.
RIGHTS: dict[str, Any] = {
    "format_version": "1.0",
    "permissions": {
        "project_admin": {"view": "none", **_NOTHING},
        "org_admin": {"view": "none", **_NOTHING},
        "lead": {
            "submit_job": "any",
            "manage_job": "n:submitter",
            "download_job": "n:submitter",
            "app_command": "n:submitter",  # how far a run is
            "view": "any",
            "operate": "none",
            **_NOTHING,
        },
        "member": {"view": "any", **_NOTHING},
    },
}


def write(local: Path, kind: str, folder: Path) -> None:
    """Complete a kit's local folder. folder: the party's, for what its coordinator stores."""
    (local / "authorization.json").write_text(json.dumps(RIGHTS, indent=1))
    _quieten(local)
    if kind == "coordinator":
        (local / "resources.json").write_text(json.dumps(_coordinator(folder), indent=1))
    elif kind in ("site", "compensator"):
        (local / "resources.json").write_text(json.dumps(_site(), indent=1))


def _quieten(local: Path) -> None:
    """FLARE writes several lines for every message, into five files."""
    logs = local / "log_config.json.default"
    if logs.exists():
        config = json.dumps(quiet(json.loads(logs.read_text())), indent=1)
        write_atomically(local / "log_config.json", config)


def renew(local: Path) -> None:
    """Let a kit that an earlier version made name Cupola's classes where they are now, and log as
    this one does."""
    _quieten(local)
    path = local / "resources.json"
    if not path.exists():
        return
    before = now = path.read_text()
    for name in _CLASSES:
        now = now.replace(json.dumps(name.replace(".engines.flare.", ".flare.")), json.dumps(name))
    if now != before:
        write_atomically(path, now)


def _common(classes: list[str]) -> dict[str, Any]:
    return {
        "format_version": 2,
        "class_list_enforcement_mode": "enforce",
        "class_allow_list": classes,
        "app_validator": {"path": VALIDATOR, "args": {}},
    }


def _site() -> dict[str, Any]:
    launchers = "nvflare.app_common.job_launcher.client_process_launcher.ClientProcessJobLauncher"
    return _common([EXECUTOR]) | {
        "allow_log_streaming": False,  # a site's log may name values and files
        "client": {"retry_timeout": 30, "compression": "None"},
        "components": [
            {
                "id": "resource_manager",
                "path": "nvflare.app_common.resource_managers.gpu_resource_manager."
                "GPUResourceManager",
                "args": {"num_of_gpus": 0, "mem_per_gpu_in_GiB": 0, "expiration_period": 300},
            },
            {
                "id": "resource_consumer",
                "path": "nvflare.app_common.resource_consumers.gpu_resource_consumer."
                "GPUResourceConsumer",
                "args": {},
            },
            {"id": "process_launcher", "path": launchers, "args": {}},
        ],
    }


def _coordinator(folder: Path) -> dict[str, Any]:
    store = str((folder / "jobs").resolve())
    snapshots = str((folder / "snapshots").resolve())
    launcher = "nvflare.app_common.job_launcher.server_process_launcher.ServerProcessJobLauncher"
    storage = "nvflare.app_common.storages.filesystem_storage.FilesystemStorage"
    return _common([CONTROLLER]) | {
        "servers": [
            {
                "admin_storage": "transfer",
                "max_num_clients": 1000,
                "heart_beat_timeout": 600,
                "download_job_url": "http://download.server.com/",
                "admin_timeout": 10.0,
            }
        ],
        "snapshot_persistor": {
            "path": "nvflare.app_common.state_persistors.storage_state_persistor."
            "StorageStatePersistor",
            "args": {
                "uri_root": "/",
                "storage": {"path": storage, "args": {"root_dir": snapshots, "uri_root": "/"}},
            },
        },
        "components": [
            {
                "id": "job_scheduler",
                "path": "nvflare.app_common.job_schedulers.job_scheduler.DefaultJobScheduler",
                "args": {"max_jobs": 4},
            },
            {
                "id": "job_manager",
                "path": "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                "args": {"uri_root": store, "job_store_id": "job_store"},
            },
            {"id": "job_store", "path": storage},
            {"id": "process_launcher", "path": launcher, "args": {}},
        ],
    }
