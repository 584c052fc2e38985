"""Starting a party: its process becomes FLARE's, with the party's folder in the environment."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from cupola.base.files import is_held, take
from cupola.engines.flare import policy
from cupola.engines.flare.federation_settings import Invitation, Kind
from cupola.engines.flare.jobs import FOLDER, KIND
from cupola.engines.flare.provision import KIT, party
from cupola.errors import CupolaError

LOCK = "party.lock"
_PROCESS = "nvflare.private.fed.app"


def command(folder: Path, invited: Invitation) -> list[str]:
    """How FLARE starts this party, as its start-up kit would."""
    chosen = ["secure_train=true", f"org={invited.org}", "config_folder=config"]
    if invited.kind == "coordinator":
        module, file = f"{_PROCESS}.server.server_train", "fed_server.json"
    else:
        module, file = f"{_PROCESS}.client.client_train", "fed_client.json"
        chosen += [f"uid={invited.name}", "heart_beat_interval=5.0"]
    kit = str((folder / KIT).resolve())
    return [sys.executable, "-u", "-m", module, "-m", kit, "-s", file, "--set", *chosen]


def environment(folder: Path, kind: str) -> dict[str, str]:
    return {**os.environ, FOLDER: str(folder.resolve()), KIND: kind}


def start(folder: Path, kind: Kind) -> None:
    """Become this party; does not return."""
    check_installed()
    invited = party(folder, kind)
    line = command(folder, invited)
    _alone(folder)
    policy.renew(folder / KIT / "local")
    where = "listening at" if kind == "coordinator" else "connecting to"
    print(f"{invited.name}: {where} {invited.coordinator}; Ctrl-C stops it", flush=True)
    os.execve(line[0], line, environment(folder, kind))


def _alone(folder: Path) -> None:
    """Hold a lock, which what this process becomes goes on holding: FLARE would let a second
    process of a party take the first one's place."""
    held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    if not take(held):
        raise CupolaError(f"another process runs the party of {folder}")
    os.set_inheritable(held, True)


def runs(folder: Path) -> bool:
    """Whether a process runs this party."""
    return is_held(folder / LOCK)


def check_installed() -> None:
    try:
        import nvflare  # noqa: F401
    except ImportError:
        raise CupolaError(
            "this needs NVIDIA FLARE: pip install 'cupola[flare]' in this environment"
        ) from None
