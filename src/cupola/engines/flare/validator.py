"""Which jobs a party takes: two JSON files that Cupola writes, to the letter, and nothing else."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nvflare.apis.app_validation import AppValidator
from nvflare.fuel.sec.audit import AuditService

from cupola.engines.flare.announce import announce_own_connection, announce_parties
from cupola.engines.flare.jobs import COORDINATOR_FILE, KIND, SITE_FILE, expected_for
from cupola.engines.flare.refusals import audit_refusals

_SIGNATURES = (".__nvfl_sig.json", ".__nvfl_submitter.crt")  # the submitter's, which FLARE checks


class JobValidator(AppValidator):
    """Refuses, and writes to the audit log, whatever is not a job of Cupola's: code, further
    files, other classes, filters, components. FLARE asks before it deploys.

    FLARE makes one when a party starts: from then on a coordinator's audit log has refusals."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ.get(KIND) == "coordinator":
            audit_refusals()
            announce_parties()
        elif KIND in os.environ:
            announce_own_connection()

    def validate(self, app_folder: str) -> tuple[str, dict]:
        code = _refusal(Path(app_folder))
        if code:
            AuditService.add_event(user="", action="cupola.job_refused", msg=code)
        return code, {}


def _refusal(folder: Path) -> str:
    paths = list(folder.rglob("*"))
    if any(path.is_symlink() for path in paths):
        return "a job may hold no links"
    files = [
        str(path.relative_to(folder))
        for path in paths
        if not path.is_dir() and path.name not in _SIGNATURES
    ]
    if files not in ([COORDINATOR_FILE], [SITE_FILE]):
        return "a job holds one configuration file of Cupola's and nothing else"
    try:
        found = json.loads((folder / files[0]).read_text())
        same = found == expected_for(files[0], found)
    except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
        same = False
    return "" if same else "the job's configuration is not one that Cupola writes"
