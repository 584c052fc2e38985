"""What this server has issued itself, told without its database: a text with a tag that only its
secret makes. Sessions, keys of site programs and marks of browsers carry one."""

from __future__ import annotations

import hmac
from hashlib import sha256

from cupola.web.settings import Settings

SESSION, KEY, BROWSER = "session", "key", "browser"
_TAG = 32  # letters


def sign(settings: Settings, purpose: str, text: str) -> str:
    return f"{text}.{_tag(settings, purpose, text)}"


def signed(settings: Settings, purpose: str, given: str | None) -> str | None:
    """The text that was signed for this purpose; None for anything else."""
    text, _, tag = (given or "").rpartition(".")
    good = hmac.compare_digest(
        tag.encode("utf-8", "replace"), _tag(settings, purpose, text).encode()
    )
    return text if good else None


def _tag(settings: Settings, purpose: str, text: str) -> str:
    whole = f"{purpose} {text}".encode("utf-8", "replace")
    return hmac.new(settings.secret, whole, sha256).hexdigest()[:_TAG]


def browser_of(settings: Settings, account: int, mark: str | None) -> str | None:
    """Which browser this is, if the account was logged in to from it before."""
    number, _, name = (signed(settings, BROWSER, mark) or "").partition("-")
    return name if number == str(account) and name else None
