"""`cupola site open`: a page on the site's own machine, where a person without a terminal joins a
study. It does what `cupola site join` does, by the same functions.

Only this machine can reach it, by an address that holds a secret; names that another page might
give this machine (Host) and forms of other pages are refused.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as Refusal
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cupola.errors import CupolaError
from cupola.joining import Choice, Joining, begin
from cupola.joining.data import described, files_here, needed_name
from cupola.secure.roster import Roster
from cupola.sites.settings import SITE, SiteSettings, read_settings
from cupola.web.access import Posted
from cupola.web.render import page
from cupola.web.routes import assets
from cupola.web.security_middleware import SecurityMiddleware, same
from cupola.web.settings import Settings

ENTER, ASKED, SHOWN, WAITING, COMPARE, RUNNING, OVER = (
    "enter", "asked", "shown", "waiting", "compare", "running", "over",
)  # fmt: skip


_CHOICES = ("data", "file", "path", "target", "epsilon", "openly")


class _Closed(BaseException):
    """The page's server ends."""


@dataclass
class Visit:
    """One study on its way, in one of the stages. said: what went wrong last, or how it ended.
    typed: what the form of the data held last."""

    folder: Path
    stage: str = ENTER
    joining: Joining | None = None
    choice: Choice = field(default_factory=Choice)
    shown: dict[str, Any] | None = None
    questions: list[dict[str, Any]] = field(default_factory=list)
    roster: Roster | None = None
    plan: str = ""
    said: str = ""
    typed: dict[str, str] = field(default_factory=lambda: dict.fromkeys(_CHOICES, ""))
    progress: dict[str, Any] = field(default_factory=dict)
    confirmed: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    beside: threading.Thread | None = None

    @property
    def known(self) -> SiteSettings | None:
        """The site's settings, if it has some."""
        made = (self.folder / SITE).exists()
        return read_settings(self.folder, SiteSettings) if made else None

    @property
    def results(self) -> list[str]:
        """Files of a finished study, in the site's own folder."""
        if self.joining is None or (self.stage, self.progress.get("status")) != (OVER, "finished"):
            return []
        return sorted(path.name for path in self.joining.results.glob("*") if path.is_file())

    def enter(self, url: str, token: str) -> None:
        self.joining = begin(self.folder, url, token, "site")
        self.said, self.stage = "", ASKED
        if self.joining.answered:
            self._go_on()

    def look(self, choice: Choice) -> None:
        assert self.joining is not None
        self.choice = choice
        self.shown = None
        if self.joining.terms is not None:
            self.shown = self.joining.look(choice).as_dict()
        else:
            self.questions = self.joining.questions()
        self.stage = SHOWN

    def answer(self, yes: bool) -> None:
        assert self.joining is not None
        if not yes:
            self.joining.decline()
            self.stage, self.said = (
                OVER,
                "You declined; nothing was told, and the token is used up.",
            )
            return
        self.joining.accept(self.choice)
        self._go_on()

    def compared(self, equal: bool) -> None:
        assert self.joining is not None
        if equal:
            self.stage = RUNNING
            self.confirmed.set()
        else:
            self.leave()

    def leave(self) -> None:
        """Also while it runs: its process ends, and no question is answered any more."""
        assert self.joining is not None
        told = " What was told before cannot be taken back." if self.stage == RUNNING else ""
        self.closing.set()
        self.joining.leave()
        self.stage, self.said = OVER, "You left the study." + told

    def _go_on(self) -> None:
        self.stage = WAITING
        self.beside = threading.Thread(target=self._rest, daemon=True)
        self.beside.start()

    def _rest(self) -> None:
        try:
            self._take_part()
        except _Closed:
            return
        except CupolaError as error:
            if not self.closing.is_set():
                self.stage, self.said = OVER, str(error)
        except Exception as error:
            self.stage, self.said = OVER, f"unexpected {type(error).__name__}"
            raise

    def _take_part(self) -> None:
        joining = self.joining
        assert joining is not None
        if joining.terms is not None:
            while (found := joining.agreed()) is None:
                if self.closing.wait(1.0):
                    return
            self.roster, self.plan = found
            self.stage = COMPARE
            while not self.confirmed.wait(0.5):
                if self.closing.is_set():
                    return
            joining.pin(self.roster, self.plan)
        self.stage = RUNNING
        last = joining.take_part(self._tell, self.choice.cores, wait=float("inf"))
        if last["status"] == "finished":
            self.said = f"The study has finished. Its results are in {joining.results}"
        else:
            self.said = f"The study ended as {last['status']}: {last.get('reason') or ''}"
        self.stage = OVER

    def _tell(self, now: dict[str, Any]) -> None:
        self.progress = now
        if self.closing.is_set():
            raise _Closed

    def state(self) -> dict[str, Any]:
        now = self.progress
        text = {WAITING: "waiting for the others to answer"}.get(self.stage, "")
        if self.stage == RUNNING:
            text = str(now.get("status", "starting"))
            if text in ("stopped", "failed"):
                text += f": {now.get('reason') or 'no reason given'}. Waiting for it to be resumed"
            elif now.get("waiting"):
                text += ", waiting for " + ", ".join(map(str, now["waiting"]))
            elif now.get("of"):
                text += f": {now.get('phase')} {now['done']:g} of {now['of']:g}"
        share = {key: now.get(key) or 0 for key in ("done", "of")}
        return {"stage": self.stage, "text": text, **share}

    def close(self) -> None:
        self.closing.set()
        if self.beside is not None:
            self.beside.join(30)


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
    app.state.settings, app.state.visit = settings, Visit(folder)
    app.add_middleware(SecurityMiddleware, settings=settings, name="cupola_site")
    app.add_middleware(_OnlyHere, port=port)

    def known(given: str) -> None:
        if not same(given, secret):
            raise HTTPException(404, "there is no such page")

    here, guard = f"/{secret}/", [Depends(known)]

    @app.get("/{given}/", dependencies=guard)
    def show(request: Request) -> Response:
        return _show(request, app.state.visit, here)

    @app.get("/{given}/state", dependencies=guard)
    def state() -> dict[str, Any]:
        found: Visit = app.state.visit
        return found.state()

    @app.get("/{given}/results/{name}", dependencies=guard)
    def result(name: str) -> Response:
        """To be saved, never shown here: a coordinator's file must not run beside the secret."""
        visit: Visit = app.state.visit
        if name not in visit.results or visit.joining is None:
            raise HTTPException(404, "there is no such file")
        return FileResponse(
            visit.joining.results / name, filename=name, media_type="application/octet-stream"
        )

    @app.post("/{given}/{step}", dependencies=guard)
    def act(request: Request, step: str, form: Posted) -> Response:
        text = {key: str(value).strip() for key, value in form.items()}
        visit: Visit = app.state.visit
        if (step, visit.stage) == ("again", OVER):
            visit.close()
            app.state.visit = Visit(folder)
            return RedirectResponse(here, 303)
        try:
            _act(visit, step, text)
        except CupolaError as error:
            visit.said = str(error)
            return _show(request, visit, here, status=422)
        return RedirectResponse(here, 303)

    @app.exception_handler(Refusal)
    def refused(request: Request, error: Refusal) -> Response:
        del request
        return JSONResponse({"detail": str(error.detail)}, error.status_code)

    app.include_router(assets.router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"), name="static")
    return app


def _act(visit: Visit, step: str, form: dict[str, str]) -> None:
    """Steps are taken in their order; one that is out of it changes nothing."""
    if (step, visit.stage) == ("token", ENTER):
        visit.enter(form.get("url", ""), form.get("token", ""))
    elif step == "data" and visit.stage in (ASKED, SHOWN):
        visit.typed = {key: form.get(key, "") for key in _CHOICES}
        visit.look(_choice(visit, form))
    elif (step, visit.stage) == ("answer", SHOWN):
        visit.answer(form.get("answer") == "accept")
    elif step == "answer" and visit.stage == ASKED and form.get("answer") == "decline":
        visit.answer(False)
    elif step == "leave" and visit.stage in (WAITING, RUNNING):
        visit.leave()
    elif (step, visit.stage) == ("roster", COMPARE):
        visit.compared(form.get("answer") == "same")
    else:
        raise CupolaError("this was answered already, or comes later")
    visit.said = visit.said if visit.stage == OVER else ""


def _choice(visit: Visit, form: dict[str, str]) -> Choice:
    joining = visit.joining
    assert joining is not None
    cores = form.get("cores", "1")
    if not cores.isdigit() or not 1 <= int(cores) <= (os.cpu_count() or 1):
        raise CupolaError(f"cores are a number up to {os.cpu_count()}")
    name, path = form.get("data", ""), form.get("path", "") or form.get("file", "")
    if joining.terms is None:
        return Choice(name or None, cores=int(cores))
    new = None
    if path:
        name = form.get("name", "") or needed_name(joining.proposal) or "cohort"
        new = described(visit.folder / path, form.get("target") or None)
    openly: tuple[str, ...] = ()
    epsilon = None
    if visit.known is None:
        openly = joining.proposal.openly if form.get("openly") else ()
        try:
            epsilon = float(form["epsilon"]) if form.get("epsilon") else None
        except ValueError:
            raise CupolaError("a budget is a number, such as 3") from None
        if epsilon is not None and not 0 < epsilon < float("inf"):
            raise CupolaError("a budget is a number above 0")
    return Choice(name or None, new, openly, epsilon, int(cores))


def _show(request: Request, visit: Visit, here: str, status: int = 200) -> Response:
    joining, known = visit.joining, None
    sets: list[str] = []
    files: list[str] = []
    openly: tuple[str, ...] = ()
    if joining is not None and visit.stage in (ASKED, SHOWN):
        known = visit.known
        if joining.terms is None:
            sets = [str(name) for name in joining.asked.get("data_sets") or []]
        else:
            sets = list(known.data) if known else []
            files = files_here(visit.folder)
            openly = joining.proposal.openly
    return page(
        request, "local.html", status=status, home=here, here=here, visit=visit, joining=joining,
        terms=joining.terms if joining else None, sets=sets, files=files, openly=openly,
        known=known, results=visit.results, cores=os.cpu_count() or 1, state=visit.state(),
        folder=str(visit.folder.resolve()),
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
            app.state.visit.close()
