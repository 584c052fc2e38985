"""What stays at a party: its own log of what went wrong, in full."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

_LONGEST = 10 << 20  # bytes


def own_log(place: Path) -> Callable[[str], None]:
    """Writes what must not cross the border to the study's log.txt; never fails."""

    def write(text: str) -> None:
        path = place / "log.txt"
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            place.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size > _LONGEST:
                path.replace(path.with_suffix(".old.txt"))
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{stamp} {text}\n")
        except OSError:
            pass  # a full disk must not hide why there is no answer

    return write
