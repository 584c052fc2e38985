"""Virtual environments of the peers: taken if there, made if not."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Peer:
    """A framework to compare with."""

    name: str  # of its package, its folder and its side
    script: str
    requirement: str
    version: str  # what an installed version must begin with


PEERS = (
    Peer("pfl", "pfl_side.py", "pfl==0.6.*", "0.6."),
    Peer("flwr", "flower_side.py", "flwr[simulation]==1.41.*", "1.41."),
)


def version_of(python: Path, package: str) -> str | None:
    """Version of a package as an interpreter sees it, None without it."""
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def prepare(
    peer: Peer, options: argparse.Namespace, torch: str, say: Callable[[str], None]
) -> tuple[Path | None, str]:
    """The peer's interpreter and "", or None and why it cannot be had."""
    folder: Path = options.environments.absolute() / peer.name
    python = folder / "bin" / "python"

    def complete() -> bool:
        found = version_of(python, peer.name) or ""
        return found.startswith(peer.version) and version_of(python, "torch") is not None

    if complete():
        return python, ""
    say(f"installing {peer.requirement}")
    # the same torch for everybody, less the mark of the build ("+cpu")
    same_torch = "torch" if torch == "not installed" else f"torch=={torch.split('+')[0]}"
    for command in (
        [options.peer_python, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "-q", same_torch, "numpy", peer.requirement],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            complaints = (done.stderr or done.stdout).strip().splitlines()
            reasons = [s for s in complaints if s.startswith("ERROR")] or complaints or ["?"]
            return None, f"{peer.requirement} cannot be installed: {reasons[-1]}"
    if complete():
        return python, ""
    return None, f"{peer.requirement} was installed but does not show"
