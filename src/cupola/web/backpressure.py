"""Back-pressure: how many requests are worked on at once, who waits, and who is sent away.

Threads and connections to the database are few. Whoever is let in finds both free; the others wait
here, where waiting costs neither, and are told soon (503, Retry-After) if their turn does not come.
Whoever was logged in before goes first: a crowd of strangers does not keep them from working.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque

from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cupola.web.security_middleware import NAMES, cookies
from cupola.web.settings import Settings
from cupola.web.signed_tokens import BROWSER, KEY, SESSION, signed

PAGES, RESERVED = 6, 2  # requests at once; of them for known visitors alone
WAITING, PATIENCE = 500, 3.0  # requests in a line, seconds
HASHES, SOONER = 4, 2.0  # at most at once, 64 MB each; seconds, since a hash takes its time, too
HASHING = ("/login", "/join", "/account", "/accounts")  # forms that hash a password
_BUSY = (
    "<!DOCTYPE html><html lang=en><meta charset=utf-8><title>Busy · Cupola</title>{again}"
    '<link rel="stylesheet" href="/assets/report.css"><main><h1>The server is busy</h1>'
    "<p>Nothing was done. {said}</p></main></html>"
)


class Lane:
    """places: requests at once, `reserved` of them for known visitors. longest: how many of either
    kind may wait; patience: seconds that they do."""

    def __init__(
        self, places: int, reserved: int = 0, longest: int = WAITING, patience: float = PATIENCE
    ) -> None:
        self.free, self.reserved = places, reserved
        self.longest, self.patience = longest, patience
        self._lines: dict[bool, deque[asyncio.Future[bool]]] = {True: deque(), False: deque()}

    async def enter(self, known: bool) -> bool:
        """Wait for a place; False: there will be none in time."""
        if self._room(known):
            self.free -= 1
            return True
        line, loop = self._lines[known], asyncio.get_running_loop()
        if len(line) >= self.longest:
            return False
        turn: asyncio.Future[bool] = loop.create_future()
        line.append(turn)
        timer = loop.call_later(self.patience, _settle, turn, False)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.leave()  # its turn had come
            raise
        finally:
            timer.cancel()
            if turn in line:
                line.remove(turn)

    def leave(self) -> None:
        self.free += 1
        for known in (True, False):
            while self._lines[known] and self._room(known):
                if _settle(self._lines[known].popleft(), True):
                    self.free -= 1

    def _room(self, known: bool) -> bool:
        return self.free > (0 if known else self.reserved)


def _settle(turn: asyncio.Future[bool], how: bool) -> bool:
    if turn.done():
        return False
    turn.set_result(how)
    return True


class Gate:
    """One lane for pages and one for passwords, whose hashing takes a core and 64 MB each: no page
    waits for it. A place is free again when an answer begins: a stream, or a slow reader, holds
    none."""

    def __init__(self, app: ASGIApp, settings: Settings) -> None:
        self.app, self.settings = app, settings
        self.pages = Lane(PAGES, RESERVED)
        self.passwords = Lane(min(HASHES, os.cpu_count() or 1), patience=SOONER)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        hashing = scope["method"] == "POST" and scope["path"] in HASHING
        lane = self.passwords if hashing else self.pages
        if not await lane.enter(self._known(scope)):
            await _busy(scope)(scope, receive, send)
            return
        inside = True

        def leave() -> None:
            nonlocal inside
            if inside:
                inside = False
                lane.leave()

        async def begun(message: Message) -> None:
            if message["type"] == "http.response.start":
                leave()
            await send(message)

        try:
            await self.app(scope, receive, begun)
        finally:
            leave()

    def _known(self, scope: Scope) -> bool:
        """Whether this server gave the visitor a session, a key or a browser's mark."""
        given, names = cookies(scope), NAMES[self.settings.secure]
        for name, value in scope["headers"]:
            if name == b"authorization" and value[:7].lower() == b"bearer ":
                return signed(self.settings, KEY, value[7:].decode("latin-1")) is not None
        return any(
            signed(self.settings, purpose, given.get(names[purpose])) is not None
            for purpose in (SESSION, BROWSER)
        )


def _busy(scope: Scope) -> Response:
    wait = 2 + secrets.randbelow(4)  # not all at the same time again
    headers = {"Retry-After": str(wait)}
    if scope["path"].startswith("/api/"):
        return JSONResponse({"detail": "the server is busy; nothing was done"}, 503, headers)
    again, said = "", "Go back and send it again in a few seconds."
    if scope["method"] == "GET":
        again = f'<meta http-equiv="refresh" content="{wait}">'
        said = f"This page tries again in {wait} seconds."
    return HTMLResponse(_BUSY.format(again=again, said=said), 503, headers)
