"""What the application is started with."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cupola.base.files import write_atomically


@dataclass(frozen=True)
class Settings:
    """folder: of the database, the studies and the secret. database: an SQLAlchemy URL, by default
    SQLite in the folder. data: folder with PLINK files that sites on this machine may choose.
    address: how others reach this server, for the commands it shows. secure: cookies only over
    HTTPS. at_once: studies that run at the same time. upload: bytes of a request at most. cheap:
    fast password hashing, for tests. tries, wait: failed log-ins of a name from an address within
    so many seconds. sweep: seconds between looks at running studies. federation: the organiser's
    folder (`cupola federation init`), for studies at real sites. memory, hours: bytes and time that
    a simulated study may take; 0: no limit. modules: installed ones whose analyses plans may name.
    """

    folder: Path
    database: str | None = None
    data: Path | None = None
    address: str = ""
    secure: bool = False
    at_once: int = 1
    upload: int = 1_000_000
    cheap: bool = False
    tries: int = 5
    wait: float = 300.0
    sweep: float = 1.0
    federation: Path | None = None
    memory: int = 0
    hours: float = 0.0
    modules: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        if self.database is None:
            return f"sqlite:///{self.folder.resolve() / 'cupola.sqlite'}"
        plain = ("postgresql://", "postgres://")
        kind, found, rest = self.database.partition("://")
        return f"postgresql+psycopg://{rest}" if kind + found in plain else self.database

    @cached_property
    def secret(self) -> bytes:
        """What forms are signed with; made once and kept, so that a restart breaks no form."""
        path = self.folder / "secret"
        if not path.exists():
            self.make_folder()
            write_atomically(path, secrets.token_bytes(32), private=True)
        return path.read_bytes()

    def make_folder(self) -> None:
        """For its user alone: it holds hashes of passwords, plans and results."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(PermissionError):  # of a folder that belongs to somebody else
            self.folder.chmod(0o700)

    def study_folder(self, study: str) -> Path:
        return self.folder / "studies" / study

    def run_folder(self, study: str, number: int) -> Path:
        """Of one execution: what the launcher and the run itself leave behind."""
        return self.study_folder(study) / str(number)
