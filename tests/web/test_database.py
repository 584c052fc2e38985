"""Migrations lead to the tables that the code uses."""

from __future__ import annotations

from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from cupola.web.database import connect, upgrade
from cupola.web.models import Base
from cupola.web.settings import Settings


def test_migrations_make_what_the_models_say(tmp_path):
    engine = connect(f"sqlite:///{tmp_path / 'x.sqlite'}")
    upgrade(engine)
    upgrade(engine)  # the second time nothing is left to do
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine.dispose()


def test_the_usual_urls_of_postgresql_are_taken(tmp_path):
    for given in ("postgresql://a:b@c/d", "postgres://a:b@c/d"):
        assert Settings(tmp_path, given).url == "postgresql+psycopg://a:b@c/d"
    assert Settings(tmp_path, "sqlite:///x").url == "sqlite:///x"


def test_the_secret_is_kept_and_for_nobody_else(tmp_path):
    first = Settings(tmp_path).secret
    assert Settings(tmp_path).secret == first
    assert (tmp_path / "secret").stat().st_mode & 0o077 == 0
