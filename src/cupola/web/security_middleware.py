"""What surrounds every request: sizes, cookies, and headers that keep a browser from mischief."""

from __future__ import annotations

import asyncio
import hmac
import secrets
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cupola.web.settings import Settings
from cupola.web.signed_tokens import BROWSER, SESSION

COOKIE, MARK = "cupola_session", "cupola_browser"
#: By whether TLS is used: a __Host- cookie comes from this host alone, by TLS, for all its pages.
NAMES = {
    secure: {SESSION: prefix + COOKIE, BROWSER: prefix + MARK}
    for secure, prefix in ((False, ""), (True, "__Host-"))
}
WEEK, YEAR = 7 * 24 * 3600, 365 * 24 * 3600
READING = 10.0  # seconds that a request's body may take
HELD = 64 << 20  # bytes of bodies that are held at the same time
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
_ZEROS = (b"\0", b"%00", b"\\u0000")


class SecurityMiddleware:
    """Reads what is sent, and refuses what is too large or slow or holds zero bytes, which
    databases cannot; gives every visitor a cookie, from which the tokens of forms are made; adds
    headers.

    An endpoint changes the cookie by setting `request.state.cookie`, and marks a browser by
    `request.state.mark`. name: of the cookie; browsers share those of one host among its ports.
    """

    def __init__(self, app: ASGIApp, settings: Settings, name: str | None = None) -> None:
        self.app, self.settings = app, settings
        names = NAMES[settings.secure]
        self.name, self.mark = name or names[SESSION], names[BROWSER]
        self.headers = dict(_HEADERS)
        if settings.secure:
            self.headers["Strict-Transport-Security"] = f"max-age={YEAR}"
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        found = cookies(scope)
        given, mark = found.get(self.name), found.get(self.mark)
        state = scope.setdefault("state", {})
        state["cookie"], state["new"] = given or secrets.token_urlsafe(32), given is None
        state["mark"] = mark

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    out.setdefault(name, value)
                out.setdefault("Cache-Control", "no-store")
                if state["cookie"] != given and not scope["path"].startswith("/static/"):
                    out.append("Set-Cookie", self._set(self.name, state["cookie"], WEEK))
                if state["mark"] and state["mark"] != mark:
                    out.append("Set-Cookie", self._set(self.mark, state["mark"], YEAR))
            await send(message)

        took: list[bytes] = []
        try:
            wrong = await self._read(scope, receive, took)
            if wrong is not None:
                await wrong(scope, receive, finish)
            else:
                await self.app(scope, _replayed(took, receive), finish)
        finally:
            self.held -= sum(map(len, took))

    async def _read(self, scope: Scope, receive: Receive, took: list[bytes]) -> Response | None:
        """The whole body before anything else is done: who sends slowly keeps nobody waiting."""
        most = self.settings.upload
        large = PlainTextResponse(f"a request may have {most:,} bytes at most", 413)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if not length.isdigit() or int(length) > most:
            return large
        if "\0" in scope["path"] or b"%00" in scope["query_string"]:
            return PlainTextResponse("zero bytes are not allowed", 400)
        if scope["method"] in ("GET", "HEAD"):
            return None
        try:
            async with asyncio.timeout(READING):
                while True:
                    message = await receive()
                    if message["type"] != "http.request":
                        return PlainTextResponse("the request was broken off", 400)
                    took.append(message.get("body", b""))
                    self.held += len(took[-1])
                    if sum(map(len, took)) > most:
                        return large
                    if self.held > HELD:
                        return PlainTextResponse("busy", 503, {"Retry-After": "3"})
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            return PlainTextResponse("the request came too slowly", 408)
        if any(zero in b"".join(took) for zero in _ZEROS):
            return PlainTextResponse("zero bytes are not allowed", 400)
        return None

    def _set(self, name: str, value: str, age: int) -> str:
        safe = "; Secure" if self.settings.secure else ""
        return f"{name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age={age}{safe}"


def _replayed(took: list[bytes], receive: Receive) -> Receive:
    """What was read is there once more; after it comes what comes."""
    whole: list[Message] = []
    if took:
        whole = [{"type": "http.request", "body": b"".join(took), "more_body": False}]

    async def again() -> Message:
        return whole.pop() if whole else await receive()

    return again


def cookies(scope: Scope) -> dict[str, str]:
    """Those that may be ours, by name."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                read = SimpleCookie(value.decode("latin-1"))
            except CookieError:
                continue
            found |= {k: m.value for k, m in read.items() if 20 <= len(m.value) <= 150}
    return found


def form_token(settings: Settings, cookie: str) -> str:
    """The token of this visitor's forms: nobody else can make it, and it ends with the cookie."""
    return hmac.new(settings.secret, b"form " + cookie.encode(), sha256).hexdigest()


def same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))
