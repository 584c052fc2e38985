"""What surrounds every request: sizes, cookies, and headers that keep a browser from mischief."""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cupola.web.settings import Settings

COOKIE = "cupola_session"
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


class Frame:
    """Refuses what is too large or holds zero bytes, which databases cannot; gives every visitor
    a cookie, from which the tokens of forms are made; adds headers.

    An endpoint changes the cookie by setting `request.state.cookie`. name: of the cookie; browsers
    share those of one host among its ports.
    """

    def __init__(self, app: ASGIApp, settings: Settings, name: str = COOKIE) -> None:
        self.app, self.settings, self.name = app, settings, name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = _cookie(scope, self.name)
        state = scope.setdefault("state", {})
        state["cookie"] = given or secrets.token_urlsafe(32)
        headers = dict(scope["headers"])
        length, took = headers.get(b"content-length", b"0"), 0
        most = self.settings.upload

        async def count() -> Message:
            nonlocal took
            message = await receive()
            if message["type"] == "http.request":
                body = message.get("body", b"")
                took += len(body)
                if took > most:
                    raise HTTPException(413, f"a request may have {most:,} bytes at most")
                if any(zero in body for zero in _ZEROS):
                    raise HTTPException(400, "zero bytes are not allowed")
            return message

        async def finish(message: Message) -> None:
            if message["type"] == "http.response.start":
                out = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    out.setdefault(name, value)
                out.setdefault("Cache-Control", "no-store")
                if state["cookie"] != given and not scope["path"].startswith("/static/"):
                    out.append("Set-Cookie", self._set(state["cookie"]))
            await send(message)

        wrong = None
        if not length.isdigit() or int(length) > most:
            wrong = PlainTextResponse(f"a request may have {most:,} bytes at most", 413)
        elif "\0" in scope["path"] or b"%00" in scope["query_string"]:
            wrong = PlainTextResponse("zero bytes are not allowed", 400)
        if wrong is not None:
            await wrong(scope, receive, finish)
            return
        await self.app(scope, count, finish)

    def _set(self, value: str) -> str:
        safe = "; Secure" if self.settings.secure else ""
        return f"{self.name}={value}; Path=/; HttpOnly; SameSite=Lax; Max-Age=604800{safe}"


def _cookie(scope: Scope, cookie: str) -> str | None:
    for name, value in scope["headers"]:
        if name == b"cookie":
            try:
                found = SimpleCookie(value.decode("latin-1")).get(cookie)
            except CookieError:
                return None
            if found is not None and 20 <= len(found.value) <= 100:
                return found.value
    return None


def form_token(settings: Settings, cookie: str) -> str:
    """The token of this visitor's forms: nobody else can make it, and it ends with the cookie."""
    return hmac.new(settings.secret, b"form " + cookie.encode(), sha256).hexdigest()


def same(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode("utf-8", "replace"))
