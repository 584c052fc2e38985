"""`cupola site open`: a page on the site's own machine, where a person without a terminal joins a
study. It does what `cupola site join` does, by the same functions.

Only this machine can reach it, by an address that holds a secret; names that another page might
give this machine (Host) and forms of other pages are refused.
"""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as Refusal
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cupola.errors import CupolaError
from cupola.site.join_session import OVER, JoinSession
from cupola.web.access import Posted
from cupola.web.render import page
from cupola.web.routes import assets
from cupola.web.security_middleware import SecurityMiddleware, same
from cupola.web.settings import Settings


class _OnlyHere:
    """Refuses requests that name this machine otherwise: a page elsewhere may have its own name
    lead here."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or hosts[0] not in self.hosts:
                await PlainTextResponse("this page has another name", 403)(scope, receive, send)
                return
        await self.app(scope, receive, send)


def make_page(folder: Path, port: int, secret: str) -> FastAPI:
    """The application. secret: part of every address."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings = Settings(folder / "page", upload=100_000)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.state.settings, app.state.session = settings, JoinSession(folder)
    app.add_middleware(SecurityMiddleware, settings=settings, name="cupola_site")
    app.add_middleware(_OnlyHere, port=port)

    def known(given: str) -> None:
        if not same(given, secret):
            raise HTTPException(404, "there is no such page")

    here, guard = f"/{secret}/", [Depends(known)]

    @app.get("/{given}/", dependencies=guard)
    def show(request: Request) -> Response:
        return _show(request, app.state.session, here)

    @app.get("/{given}/state", dependencies=guard)
    def state() -> dict[str, Any]:
        found: JoinSession = app.state.session
        return found.state()

    @app.get("/{given}/results/{name}", dependencies=guard)
    def result(name: str) -> Response:
        """To be saved, never shown here: a coordinator's file must not run beside the secret."""
        session: JoinSession = app.state.session
        if name not in session.results or session.joining is None:
            raise HTTPException(404, "there is no such file")
        return FileResponse(
            session.joining.results / name, filename=name, media_type="application/octet-stream"
        )

    @app.post("/{given}/{step}", dependencies=guard)
    def act(request: Request, step: str, form: Posted) -> Response:
        text = {key: str(value).strip() for key, value in form.items()}
        session: JoinSession = app.state.session
        if (step, session.stage) == ("again", OVER):
            session.close()
            app.state.session = JoinSession(folder)
            return RedirectResponse(here, 303)
        try:
            session.act(step, text)
        except CupolaError as error:
            session.said = str(error)
            return _show(request, session, here, status=422)
        return RedirectResponse(here, 303)

    @app.exception_handler(Refusal)
    def refused(request: Request, error: Refusal) -> Response:
        del request
        return JSONResponse({"detail": str(error.detail)}, error.status_code)

    app.include_router(assets.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    return app


def _show(request: Request, session: JoinSession, here: str, status: int = 200) -> Response:
    joining = session.joining
    return page(
        request, "local.html", status=status, home=here, here=here, session=session,
        joining=joining, terms=joining.terms if joining else None, results=session.results,
        cores=os.cpu_count() or 1, state=session.state(), folder=str(session.folder.resolve()),
        **session.offered,
    )  # fmt: skip


def serve(folder: Path, port: int = 0, browser: bool = True) -> None:
    """Serve the page until stopped (Ctrl-C)."""
    import webbrowser

    import uvicorn

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", port))
        number = listening.getsockname()[1]
        secret = secrets.token_urlsafe(24)
        app = make_page(folder, number, secret)
        where = f"http://127.0.0.1:{number}/{secret}/"
        print(f"Open {where}\n(for this machine only; Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(where)
        try:
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)
            uvicorn.Server(config).run(sockets=[listening])
        finally:
            app.state.session.close()
