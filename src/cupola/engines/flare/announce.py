"""What a party's terminal says beside FLARE's warnings: that it is connected, and what runs.

FLARE logs both among hundreds of lines that Cupola turns off (see `policy`). And it warns of what
is no fault. Whoever follows a study asks for its progress until its job is gone, and a few times
more: each time the coordinator's log would say twice that the job's process cannot be reached. And
parties end a job before the coordinator does, which would call it dead; who gives no answer while a
study runs is told by the study itself.
"""

from __future__ import annotations

import logging
import re
from typing import Any

_OVER = re.compile(
    r"no connection to child server\.[0-9a-f-]{36}|"
    r"cannot send to 'server\.[0-9a-f-]{36}': target_unreachable|"
    r"no app command func for topic cupola\.progress|"  # a job that has not begun
    r"MPM: still running thread kernel_|"  # ours, which ends with its process
    r"notified SJ of dead-job: .*reason='missing job on client'"
)
LOG_FILTER = f"{__name__}.JobIsOver"


class JobIsOver(logging.Filter):
    """Lets everything through but that a job which has ended cannot be asked."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _OVER.search(record.getMessage())


def quiet(config: dict[str, Any]) -> dict[str, Any]:
    """FLARE's configuration of logging: warnings and errors, and of these only what they are."""
    config["loggers"]["root"]["level"] = "WARNING"
    config.setdefault("filters", {})["cupola"] = {"()": LOG_FILTER}
    for handler in config["handlers"].values():
        handler["filters"] = [*(f for f in handler.get("filters", []) if f != "cupola"), "cupola"]
    return config


def say(name: str, what: str) -> None:
    print(f"{name}: {what}", flush=True)


def announce_own_connection() -> None:
    """From now on, say when this party has been let in by the coordinator."""
    from nvflare.private.fed.client.fed_client_base import FederatedClientBase

    register = FederatedClientBase.client_register
    if getattr(register, "announces", False):
        return

    def client_register(self: Any, project_name: Any, fl_ctx: Any) -> None:
        before = self.token
        register(self, project_name, fl_ctx)
        if self.token and not before:
            say(self.client_name, "connected; it answers what was joined")

    client_register.announces = True  # type: ignore[attr-defined]
    FederatedClientBase.client_register = client_register


def announce_parties() -> None:
    """From now on, say at the coordinator which party has connected."""
    from nvflare.private.fed.server.client_manager import ClientManager

    let_in = ClientManager.authenticate
    if getattr(let_in, "announces", False):
        return

    def authenticate(self: Any, request: Any, fl_ctx: Any) -> Any:
        client = let_in(self, request, fl_ctx)
        if client is not None and client.name in self.name_to_clients:
            say(client.name, "connected")
        return client

    authenticate.announces = True  # type: ignore[attr-defined]
    authenticate.audits = getattr(let_in, "audits", False)  # type: ignore[attr-defined]
    ClientManager.authenticate = authenticate
