"""What tokens were exchanged for and what was accepted, in the party's folder, so that a way that
was broken off goes on. For the owner's eyes only: it holds keys to the server."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cupola.base.files import write_atomically
from cupola.errors import DataError

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
    write_atomically(folder / KEPT, json.dumps(whole), private=True)
