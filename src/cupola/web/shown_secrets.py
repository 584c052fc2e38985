"""What one browser may see for a while and nobody keeps: new tokens, a new password.

A form that makes a secret leads to a page that shows it, so that loading that page again shows it
again and makes nothing. The secret stays in this process's memory, for the session that made it.
"""

from __future__ import annotations

import secrets
import threading
import time
from typing import Any

from cupola.web.accounts import digest

LASTS, MOST = 600.0, 500  # seconds; secrets at a time


class ShownSecrets:
    def __init__(self) -> None:
        self._held: dict[str, tuple[float, str, Any]] = {}
        self._guard = threading.Lock()

    def put(self, cookie: str, what: Any) -> str:
        """Where it is found by the session of this cookie."""
        key = secrets.token_urlsafe(16)
        with self._guard:
            self._sweep()
            while len(self._held) >= MOST:
                del self._held[next(iter(self._held))]
            self._held[key] = time.monotonic() + LASTS, digest(cookie), what
        return key

    def get(self, cookie: str, key: str) -> Any | None:
        with self._guard:
            self._sweep()
            _, whose, what = self._held.get(key, (0.0, "", None))
        return what if whose == digest(cookie) else None

    def _sweep(self) -> None:
        now = time.monotonic()
        for key in [key for key, held in self._held.items() if held[0] < now]:
            del self._held[key]
