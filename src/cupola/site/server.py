"""The web application as a party's program sees it: JSON over HTTPS, and nothing that it says is
trusted to be plain."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

from cupola.base.files import write_atomically
from cupola.errors import DataError, FederationError, PlanError

LONGEST = 4 << 20  # bytes of an answer
_FILE = 4 << 30
BUSY = (10.0,) * 6  # a busy server is asked so often again, after so many seconds at most
_HERE = ("localhost", "127.0.0.1", "::1")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEPT = "joining.json"


class NotYet(FederationError):
    """What was asked for is not there."""


class Unknown(FederationError):
    """The server does not know this token or key."""


class Busy(FederationError):
    """The server has no room now. wait: seconds after which it wants to be asked again."""

    def __init__(self, wait: float) -> None:
        self.wait = wait
        super().__init__("the server is busy; try again later")


class _NoRedirects(HTTPRedirectHandler):
    """A key goes to the server it was made for, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def checked_url(url: str) -> str:
    """A URL over which a token may go."""
    try:
        parts = urlsplit(url.strip())
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if (
        parts.scheme not in ("http", "https")
        or not host
        or "@" in parts.netloc
        or (parts.query or parts.fragment or "\\" in url)
    ):
        raise PlanError(f"'{plain(url)}' is not the address of a server, such as https://host")
    if parts.scheme == "http" and host not in _HERE:
        raise PlanError(
            f"{plain(url)}: over http anybody on the way reads the token; the server must be "
            "reached by https (only this machine itself may be http)"
        )
    return f"{parts.scheme}{url.strip()[len(parts.scheme) :]}".rstrip("/")  # HTTP:// is http://


class Server:
    """key: what the token was exchanged for."""

    def __init__(self, url: str, key: str = "", timeout: float = 60.0) -> None:
        self.url, self.key, self.timeout = checked_url(url), key, timeout
        # Over http, to this machine itself, no proxy of the environment is asked: it would read
        # the token.
        plainly = [ProxyHandler({})] if self.url.startswith("http://") else []
        self._opener = build_opener(_NoRedirects, *plainly)

    def get(self, path: str) -> dict[str, Any]:
        return self._json("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return self._json("POST", path, body or {})

    def _json(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        with self._open(method, path, body) as answer:
            text = answer.read(LONGEST + 1)
        if len(text) > LONGEST:
            raise FederationError("the server's answer is too large")
        try:
            found = json.loads(text) if text else {}
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise FederationError(f"{self.url} does not answer as Cupola's web application does")
        return found

    def fetch(self, name: str, folder: Path) -> Path:
        """A file of the results, into a folder."""
        if not _NAME.fullmatch(name):
            raise FederationError("the server names a file that is none of a study's")
        folder.mkdir(parents=True, exist_ok=True)
        part, took = folder / f".{name}.part", 0
        try:
            with self._open("GET", f"/api/site/files/{name}", None) as answer, part.open("wb") as f:
                while body := answer.read(1 << 20):
                    took += len(body)
                    if took > _FILE:
                        raise FederationError(f"'{name}' is too large")
                    f.write(body)
                length = getattr(answer, "headers", {}).get("Content-Length")
                if length is not None and int(length) != took:
                    raise FederationError(f"'{name}' was broken off on its way")
            part.replace(folder / name)
        finally:
            part.unlink(missing_ok=True)
        return folder / name

    def _open(self, method: str, path: str, body: dict[str, Any] | None) -> IO[bytes]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = Request(self.url + path, data, headers, method=method)
        for wait in (*BUSY, None):
            try:
                return self._once(request, path)
            except Busy as busy:
                if wait is None:
                    raise
                time.sleep(min(busy.wait, wait))  # nothing was done: it may be asked again
        raise AssertionError

    def _once(self, request: Request, path: str) -> IO[bytes]:
        try:
            opened: IO[bytes] = self._opener.open(request, timeout=self.timeout)
        except HTTPError as error:
            again = str(error.headers.get("Retry-After", ""))
            if error.code == 503 and again.isdigit():
                error.close()
                raise Busy(float(again)) from None
            with error:
                said = _said(error.read(20_000)) or f"{error.code} {plain(error.reason)}"
            if error.code == 401 or (error.code == 404 and path == "/api/join"):
                raise Unknown(said) from None
            if error.code == 404:
                raise NotYet(said) from None
            raise FederationError(f"the server refuses: {said}") from None
        except (URLError, OSError) as error:
            reason = getattr(error, "reason", error)
            raise FederationError(f"{self.url} cannot be reached: {plain(reason)}") from None
        return opened


def _said(body: bytes) -> str:
    try:
        found = json.loads(body)
        return plain(found["detail"]) if isinstance(found, dict) else ""
    except (ValueError, KeyError):
        return ""


def plain(text: Any, longest: int = 500) -> str:
    """Text of others, without what a terminal would obey."""
    return "".join(c if c.isprintable() else " " for c in str(text))[:longest]


# What is kept of it


def kept(folder: Path) -> dict[str, Any]:
    """What tokens were exchanged for and what was accepted, in the party's folder, so that a way
    that was broken off goes on. For the owner's eyes only: it holds keys to the server."""
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
