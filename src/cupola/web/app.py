"""The application: its routes, what surrounds them, and what happens beside requests."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from sqlalchemy import select
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as NoConnection
from starlette.exceptions import HTTPException

import cupola
from cupola.web.access import LogIn
from cupola.web.accounts import RateLimited, Refused
from cupola.web.backpressure import Gate
from cupola.web.database import open_database
from cupola.web.kinds import Wrong
from cupola.web.launcher import ChildProcess, Launcher
from cupola.web.models import RUNNING, Run, Study
from cupola.web.organiser import FlareLauncher, organiser_of
from cupola.web.render import page
from cupola.web.routes import account, api, assets, compare, join, live, result, study
from cupola.web.security_middleware import SecurityMiddleware
from cupola.web.settings import Settings
from cupola.web.shown_secrets import ShownSecrets
from cupola.web.study_service import StudyService

_LOG = logging.getLogger("cupola.web")


def make_app(settings: Settings, launcher: Launcher | None = None) -> FastAPI:
    """The application on these settings; the database is made or migrated."""
    sessions = open_database(settings)
    organiser = organiser_of(settings)
    made = launcher or (ChildProcess() if organiser is None else FlareLauncher(organiser))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ending = threading.Event()
        app.state.ending = ending
        background = threading.Thread(target=_background, args=(app, ending), daemon=True)
        background.start()
        if isinstance(made, FlareLauncher):
            made.coordinate()
        yield
        ending.set()
        background.join(10)
        with sessions() as db:
            rule = select(Run.id).join(Study).where(Run.status == RUNNING, Study.real)
            if isinstance(made, FlareLauncher) and db.scalar(rule.limit(1)) is None:
                made.close()
        sessions.kw["bind"].dispose()

    app = FastAPI(
        title="Cupola",
        version=cupola.__version__,
        description="Studies over sites that keep their data. Site programs log in with the key "
        "that a token is exchanged for; browsers with a session.",
        docs_url=None,  # they would load scripts from another host
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.settings, app.state.sessions = settings, sessions
    app.state.launcher, app.state.secrets = made, ShownSecrets()
    app.state.ending = threading.Event()
    app.add_middleware(Gate, settings=settings)
    app.add_middleware(
        SecurityMiddleware, settings=settings
    )  # around the gate: bodies are read before it
    for part in (account, assets, compare, join, live, result, study):
        app.include_router(part.router, include_in_schema=False)
    app.include_router(api.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    _answers(app)
    return app


def _answers(app: FastAPI) -> None:
    """Errors as pages, or as JSON where a program asked."""

    def told(request: Request, status: int, said: str, **headers: str) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse({"detail": said}, status, headers=headers)
        return page(request, "error.html", status=status, said=said, headers=headers, code=status)

    @app.exception_handler(HTTPException)
    def _http(request: Request, error: HTTPException) -> Response:
        return told(request, error.status_code, str(error.detail), **dict(error.headers or {}))

    @app.exception_handler(LogIn)
    def _log_in(request: Request, _: LogIn) -> Response:
        back = quote(request.url.path) if request.method == "GET" else "/"
        return RedirectResponse(f"/login?back={back}", 303)

    @app.exception_handler(RateLimited)
    def _rate_limited(request: Request, error: RateLimited) -> Response:
        return told(request, 429, str(error), **{"Retry-After": str(error.wait)})

    @app.exception_handler(Refused)
    def _refused(request: Request, error: Refused) -> Response:
        return told(request, 409, str(error))

    @app.exception_handler(Wrong)
    def _wrong(request: Request, error: Wrong) -> Response:
        return told(request, 422, str(error))

    @app.exception_handler(RequestValidationError)
    def _invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:])
        return told(request, 422, f"{place}: {first['msg']}")

    @app.exception_handler(IntegrityError)
    def _both(request: Request, _: IntegrityError) -> Response:
        return told(request, 409, "somebody else did the same at the same time; look again")

    @app.exception_handler(OperationalError)
    @app.exception_handler(NoConnection)
    def _away(request: Request, error: Exception) -> Response:
        _LOG.warning("the database does not answer: %s", error)
        said = "the database is busy or away; nothing was done"
        return told(request, 503, said, **{"Retry-After": "3"})

    @app.exception_handler(Exception)
    def _ours(request: Request, _: Exception) -> Response:
        return told(request, 500, "this is the server's fault; its log says more")

    @app.exception_handler(UnicodeEncodeError)
    @app.exception_handler(DataError)
    def _text(request: Request, _: Exception) -> Response:
        return told(request, 400, "the request holds text that cannot be stored")


def _background(app: FastAPI, ending: threading.Event) -> None:
    """Now and then: settle runs that ended, begin those that wait."""
    settings = app.state.settings
    while not ending.wait(settings.sweep):
        try:
            with app.state.sessions() as db:
                StudyService(db, settings, app.state.launcher).sweep()
        except Exception:
            _LOG.exception("looking after studies failed; trying again")
