"""What tokens were exchanged for and what was accepted, in the party's folder, so that a way that
was broken off goes on. For the owner's eyes only: it holds keys to the server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cupola.errors import DataError
from cupola.federation.stored import sync_folder

KEPT = "joining.json"


def kept(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / KEPT).read_text("utf-8"))
        return found if isinstance(found, dict) else {}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise DataError(f"{folder / KEPT} cannot be read") from None


def keep(folder: Path, mark: str, facts: dict[str, Any] | None) -> None:
    whole = kept(folder)
    whole.pop(mark, None)
    if facts is not None:
        whole[mark] = facts
    write_private(folder / KEPT, json.dumps(whole).encode())


def write_private(path: Path, body: bytes) -> None:
    """A file for its owner alone, written whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)
