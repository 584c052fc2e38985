"""Opening the database and bringing it up to date."""

from __future__ import annotations

from typing import Any

from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session, sessionmaker

from cupola.errors import CupolaError
from cupola.web.settings import Settings


def open_database(settings: Settings) -> sessionmaker[Session]:
    """Sessions on the database of these settings, which is made or migrated first."""
    settings.make_folder()
    if settings.database is None:
        for end in ("", "-wal", "-shm"):  # SQLite makes the others as the first one is
            path = settings.folder / f"cupola.sqlite{end}"
            if not end:
                path.touch(mode=0o600)
            if path.exists():
                path.chmod(0o600)
    engine = connect(settings.url)
    try:
        upgrade(engine)
    except Exception as error:
        engine.dispose()
        if type(error).__module__.startswith(("sqlalchemy", "psycopg")):
            where = engine.url.render_as_string(hide_password=True)
            said = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise CupolaError(f"database {where}: {said}") from None
        raise
    facts = {"modules": settings.modules}  # for `Study.analysis`
    return sessionmaker(engine, expire_on_commit=False, info=facts)


#: More than the gate lets in, the live pages' looks and the sweep; who waits longer gives up.
POOL = {"pool_size": 16, "max_overflow": 4, "pool_timeout": 4}


def connect(url: str) -> Engine:
    if not url.startswith("sqlite"):
        return create_engine(url, pool_pre_ping=True, **POOL)
    engine = create_engine(url, connect_args={"timeout": 4}, **POOL)

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")  # readers do not wait for a writer
        connection.execute("PRAGMA synchronous=NORMAL")
        connection.execute("PRAGMA foreign_keys=ON")

    return engine


def upgrade(engine: Engine) -> None:
    """Carry out the migrations that are missing."""
    config = Config()
    config.set_main_option("script_location", "cupola.web:migrations")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
