"""A server without a network: an application, people with accounts, and studies in every state."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient
from patience import wait

from cupola.association import hit_index
from cupola.association.compare import Table
from cupola.web import accounts
from cupola.web.app import make_app
from cupola.web.kinds import forms
from cupola.web.launcher import Job
from cupola.web.models import COORDINATOR, PARTICIPANT, Account, Attempt
from cupola.web.security_middleware import COOKIE, form_token
from cupola.web.settings import Settings
from cupola.web.study_service import StudyService

PASSWORD = "correct horse"
ANSWER = {
    "task": "train", "numbers": 10, "bytes": 80, "times": 2, "to": "coordinator: the total",
    "reveals": "an update", "protection": "masked",
}  # fmt: skip
PEOPLE = {"ada": COORDINATOR, "ben": COORDINATOR, "cleo": PARTICIPANT, "dora": PARTICIPANT}


@dataclass
class Pretender:
    """A launcher that starts nothing: tests say what has happened."""

    jobs: list[tuple[Job, Path]] = field(default_factory=list)
    living: set[Path] = field(default_factory=set)
    stopped: list[Path] = field(default_factory=list)

    def start(self, job: Job, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.jobs.append((job, folder))
        if job.kind == "check":
            (folder / "job.json").write_text("{}")
            told = {"error": "not foreseen in tests", "answers": [ANSWER]}
            (folder / "foreseen.json").write_text(json.dumps(told))
        else:
            self.living.add(folder)

    def room(self) -> bool:
        return True

    def stop(self, folder: Path) -> None:
        self.stopped.append(folder)

    def alive(self, folder: Path) -> bool:
        return folder in self.living

    def end(self, folder: Path, status: str, reason: str | None = None, **facts: Any) -> None:
        """The run in a folder ends so."""
        run = folder / "run"
        run.mkdir(exist_ok=True)
        result = {"status": status, "reason": reason, **facts}
        (run / "result.json").write_text(json.dumps(result))
        if status == "finished":
            (folder / "results.html").write_text("<section><h2>How it learned</h2></section>")
            summary = {"metric": "accuracy", "value": 0.9, "bytes": 1e6, "epsilon": 2.5,
                       "unit": "example", "recipe": "fedavg", "data": "digits",
                       "tested": 3,
                       "said": "accuracy 90%, epsilon 2.5"}  # fmt: skip
            (folder / "summary.json").write_text(json.dumps(summary))
        self.living.discard(folder)


class World:
    """The application and what tests do with it."""

    def __init__(
        self,
        folder: Path,
        database: str | None = None,
        federation: Path | None = None,
        modules: tuple[str, ...] = (),
        people: bool = True,
    ) -> None:
        data = folder / "data"
        for name in ("north", "south", "west"):
            for end in ("bed", "bim", "fam"):
                (data / name).mkdir(parents=True, exist_ok=True)
                (data / name / f"chip.{end}").write_text("")
        self.settings = Settings(
            folder, database, data, "https://cupola.example",
            cheap=True, sweep=3600.0, upload=300_000, at_once=50, federation=federation,
            modules=modules,
        )  # fmt: skip
        self.launcher = Pretender()
        self.browsers: dict[str | None, TestClient] = {}
        self.app = make_app(self.settings, self.launcher)
        with self.app.state.sessions() as db:
            for i, (name, role) in enumerate(PEOPLE.items() if people else ()):
                accounts.create(db, self.settings, name, PASSWORD, role, manager=i == 0)
            db.commit()

    def visitor(self, name: str | None = None) -> TestClient:
        """A browser, in which somebody is logged in."""
        browser = TestClient(self.app, follow_redirects=False, base_url="http://testserver")
        browser.get("/login")
        if name is not None:
            answer = self.post(browser, "/login", name=name, password=PASSWORD)
            assert answer.status_code == 303, answer.text
        return browser

    def known(self, name: str | None) -> TestClient:
        """The same browser every time, for tests that leave it logged in."""
        if name not in self.browsers:
            self.browsers[name] = self.visitor(name)
        return self.browsers[name]

    def calm(self) -> None:
        """Forget log-ins that failed."""
        with self.app.state.sessions() as db:
            db.query(Attempt).delete()
            db.commit()

    def token(self, browser: TestClient) -> str:
        return form_token(self.settings, browser.cookies.get(COOKIE) or "")

    def post(self, browser: TestClient, url: str, files: Any = None, **fields: Any) -> Any:
        return browser.post(url, data={"csrf": self.token(browser), **fields}, files=files)

    def service(self, db: Any) -> StudyService:
        return StudyService(db, self.settings, self.launcher)

    def study(self, owner: str, kind: str = "training", **changes: Any) -> str:
        """A new draft; its id."""
        with self.app.state.sessions() as db:
            found = db.query(Account).filter_by(name=owner).one()
            start = {
                **forms()[kind].start,
                "sum": {"kind": "plain"},
            }  # of as few sites as a test has
            made = self.service(db).create(found, kind, {**start, **changes})
            db.commit()
            return made.id

    def sweep(self) -> None:
        with self.app.state.sessions() as db:
            self.service(db).sweep()

    def finish(self, study: str, number: int = 1, status: str = "finished", **facts: Any) -> Path:
        self.sweep()
        folder = self.settings.run_folder(study, number)
        self.launcher.end(folder, status, **facts)
        self.sweep()
        return folder

    def invite(self, owner: TestClient, study: str, *sites: str, **more: Any) -> dict[str, str]:
        """Tokens by site, read from the page that shows them."""
        answer = self.shown(owner, f"/studies/{study}/invite", sites="\n".join(sites), **more)
        assert answer.status_code == 200, answer.text
        words = answer.text.split("<h2>Tokens")[1].split("<pre>")[1:]
        return {site: text.split("<")[0] for site, text in zip(sites, words)}

    def shown(self, browser: TestClient, url: str, **fields: Any) -> Any:
        """What a form leads to."""
        answer = self.post(browser, url, **fields)
        return browser.get(answer.headers["location"]) if answer.status_code == 303 else answer

    def join(self, browser: TestClient, token: str, data: str = "") -> str:
        """Enter a token and accept; the path of the invitation."""
        answer = self.post(browser, "/join", token=token)
        assert answer.status_code == 303, answer.text
        where = answer.headers["location"]
        wait(lambda: browser.get(f"{where}/foreseen").json()["known"])  # nobody consents before
        answer = self.post(browser, f"{where}/accept", data=data)
        assert answer.status_code == 303, answer.text
        return where


def variants(m: int, seed: int = 3) -> Table:
    """Results of made-up variants, some without a p-value."""
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(m) < 0.1, np.nan, rng.random(m))
    chromosome, position = np.sort(rng.integers(1, 24, m)), rng.integers(1, 10**8, m)
    names = [f"rs{i * 7 % 1013}x{i}" for i in range(m)]
    rows = [
        [str(c), n, str(b), "NA" if v != v else f"{v:.4g}"]
        for c, n, b, v in zip(chromosome, names, position, p)
    ]
    with np.errstate(divide="ignore"):
        log = np.log10(p)
    return Table(names, chromosome, position, log, ["CHR", "SNP", "BP", "P"], rows)


def with_hits(folder: Path, m: int = 120) -> Table:
    table = variants(m)
    hit_index.build(folder / "hits.sqlite", table)
    return table
