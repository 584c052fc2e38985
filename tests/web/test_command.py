"""`cupola web` at its first start, and what is done from the machine itself."""

from __future__ import annotations

import os
import re

import pytest
from typer.testing import CliRunner

from cupola.cli import app
from cupola.web import accounts
from cupola.web.accounts import Refused
from cupola.web.database import open_database
from cupola.web.demo import simulated_cohorts
from cupola.web.models import Study
from cupola.web.settings import Settings


@pytest.fixture
def start(monkeypatch):
    """Everything of `cupola web` but the serving."""
    before = os.umask(0o022)
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    monkeypatch.setattr("cupola.cli.web._raise_files", lambda: None)
    fast = accounts.hasher(Settings(None, cheap=True))
    monkeypatch.setattr("cupola.web.accounts.hasher", lambda _: fast)

    def run(*words):
        return CliRunner().invoke(app, ["web", *map(str, words)])

    yield run
    os.umask(before)


def enters(folder, said):
    """Whether the name and the password that were printed open the door; how many studies."""
    name, password = re.search(r"name (\S+), password (\S+)", said).groups()
    settings = Settings(folder)
    with open_database(settings)() as db:
        try:
            accounts.log_in(db, settings, name, password, "here")
        except Refused:
            return False
        finally:
            enters.studies = db.query(Study).count()
            db.get_bind().dispose()
    return True


def test_it_starts_where_people_have_data_of_their_own(start, tmp_path):
    data, folder = tmp_path / "data", tmp_path / "web"
    simulated_cohorts(data / "ours", variants=8, people=9)
    before = sorted(data.rglob("*"))
    found = start("--folder", folder, "--data", data)
    assert found.exit_code == 0, found.output
    assert "association was left out" in found.output
    assert enters(folder, found.output)
    assert enters.studies == 2
    assert sorted(data.rglob("*")) == before  # nothing was put among them


def test_the_first_password_is_told_whatever_happens_afterwards(start, tmp_path, monkeypatch):
    def fail(_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr("cupola.web.demo.demonstrations", fail)
    found = start("--folder", tmp_path / "web")
    assert found.exit_code != 0
    assert enters(tmp_path / "web", found.output)


def test_demonstrations_that_cannot_be_made_are_left_out(start, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on the device")

    monkeypatch.setattr("cupola.web.demo.simulated_cohorts", full)
    found = start("--folder", tmp_path / "web")
    assert found.exit_code == 0
    assert "no space left" in found.output
    assert enters(tmp_path / "web", found.output)


def test_what_it_keeps_is_for_its_user_alone(start, tmp_path):
    start("--folder", tmp_path / "web")
    for path in (tmp_path / "web").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_lost_password_is_reset(start, tmp_path):
    folder = tmp_path / "web"
    first = start("--folder", folder, "--no-demo").output
    assert enters(folder, first)
    new = start("reset-password", "--folder", folder)
    assert new.exit_code == 0, new.output
    assert enters(folder, new.output)
    assert not enters(folder, first)
    for words, said in (
        (("reset-password", "nobody", "--folder", folder), "there are: coordinator"),
        (("reset-password", "--folder", tmp_path / "elsewhere"), "no web application"),
    ):
        wrong = start(*words)
        assert wrong.exit_code != 0
        assert said in str(wrong.exception) + wrong.output
    assert not (tmp_path / "elsewhere").exists()
